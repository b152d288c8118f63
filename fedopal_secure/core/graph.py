"""Who shares with whom, and the numbers that follow: threshold, quorum, tolerated dropouts.

On the complete graph everyone in the roster holds a share of everyone's secrets, its own included.
"""

from __future__ import annotations


def threshold(holders: int, corrupt: int) -> int:
    """Shares that rebuild a secret: floor((holders + c) / 2) + 1.

    Honest holders release one kind of share for a client and corrupt ones both, so t shares of each kind would take
    2t <= (holders - c) + 2c. One more than half of that keeps the self-mask and the masking key from both being
    rebuilt (Bonawitz et al. 2017, section 6.2).
    """
    return (holders + corrupt) // 2 + 1


def has_quorum(signatures: int, roster: int, corrupt: int) -> bool:
    """Whether more than (roster + c) / 2 signed: then no second view can have as many, as honest clients sign once."""
    return 2 * signatures > roster + corrupt
