"""CSV manifests: what a line may say, groups kept whole, and one line of error with the number of the line."""

from __future__ import annotations

import numpy as np
import pytest

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.datasets import load_dataset, load_labelled, plan_dataset
from fedopal_secure.data.partition import dirichlet_partition
from fedopal_secure.data.records import LeftOut
from tests.data.folders import picture, write


@pytest.fixture
def at(tmp_path):
    """A folder with images/0.png to images/29.png."""
    return write(tmp_path, {f"images/{i}.png": picture(i) for i in range(30)})


def table(at, lines, raw=None):
    path = at / "list.csv"
    path.write_bytes("\n".join(lines).encode() if raw is None else raw)
    return path


def lines(labels, more=(), header="path,label"):
    rows = [f"images/{i}.png,{label}" for i, label in enumerate(labels)]
    return [header, *(",".join([row, *extra]) for row, extra in zip(rows, more or [()] * len(rows), strict=True))]


def refused(says, path):
    with pytest.raises(InputError, match=says) as caught:
        load_dataset(str(path), seed=0)
    assert "\n" not in str(caught.value)


def test_labels_only(at):
    dataset = load_dataset(str(table(at, lines(["cat"] * 10 + ["dog"] * 5))), seed=0)
    assert dataset.name == "list" and dataset.train.classes == ("cat", "dog")
    assert np.bincount(dataset.train.labels).tolist() == [8, 4] and np.bincount(dataset.test.labels).tolist() == [2, 1]
    assert all(name.startswith("images/") for name in dataset.train.names) and dataset.train.groups is None


def test_split_is_that_of_the_file(at):
    splits = [("train",)] * 6 + [("TEST",)] * 3 + [("val",)] * 2 + [("validation",)]
    path = table(at, lines("abc" * 4, splits, "path,label,split"))
    dataset = load_dataset(str(path), seed=0)
    assert sorted(dataset.train.names) == [f"images/{i}.png" for i in range(6)]
    assert dataset.test.names == ("images/6.png", "images/7.png", "images/8.png")
    assert [left.name for left in plan_dataset(str(path), seed=0).left_out] == [f"images/{i}.png" for i in (9, 10, 11)]
    images, _ = load_labelled(str(path), ("c", "b", "a"))
    assert images.labels.tolist() == [2, 1, 0]


def test_groups_are_never_cut_apart(at):
    # Ten patients of three images; patient 4 has both labels.
    patients = [(f"p{i // 3}",) for i in range(30)]
    labels = ["ill" if i // 3 < 5 and i != 13 else "well" for i in range(30)]
    path = table(at, lines(labels, patients, "path,label,group"))
    of = {f"images/{i}.png": patients[i][0] for i in range(30)}
    for seed in range(8):
        dataset = load_dataset(str(path), seed=seed)
        parts = [{of[name] for name in images.names} for images in (dataset.train, dataset.test)]
        assert not parts[0] & parts[1] and len(parts[0] | parts[1]) == 10
        held = dirichlet_partition(dataset.train.labels, 4, 0.3, seed, dataset.train.groups)
        owners = [{of[dataset.train.names[i]] for i in indices} for indices in held]
        assert sum(len(owned) for owned in owners) == len(parts[0])


def test_test_images_need_no_group(at):
    more = [("p1", "train")] * 4 + [("", "test")] * 2
    dataset = load_dataset(str(table(at, lines("abab" + "ab", more, "path,label,group,split"))), seed=0)
    assert dataset.train.groups.tolist() == [0] * 4 and dataset.test.groups is None


def test_quotes_bom_line_ends_spaces_order_and_case(at):
    write(at, {"images/a, b.png": picture(40), "images/größe.PNG": picture(41)})
    raw = (
        '\ufeffLabel, PATH ,age\r\n"x, y","images/a, b.png",3\r\n'
        + "z,images/größe.PNG,\r\n\r\n  z , ./images/0.png ,4\r\n"
        + '"x, y",images/1.png,5'
    )
    path = table(at, [], raw.encode())
    plan = plan_dataset(str(path), seed=0)
    assert plan.classes == ("x, y", "z")
    assert {record.name for record in plan.train + plan.test} == {
        "images/a, b.png",
        "images/größe.PNG",
        "images/0.png",
        "images/1.png",
    }
    assert plan.left_out == (LeftOut("column age", "not path, label, group or split"),)
    assert len(load_dataset(str(path), seed=0).train) == 2


def test_upper_case_suffix_and_any_kind_of_file_that_is_listed(at):
    write(at, {"images/no-suffix": picture(50)})
    path = at / "LIST.CSV"
    path.write_text("path,label\nimages/no-suffix,a\nimages/1.png,a\nimages/2.png,a\n")
    dataset = load_dataset(str(path), seed=0)
    assert dataset.name == "LIST" and len(dataset.train) + len(dataset.test) == 3


def test_files_that_are_missing_or_broken_are_unreadable_images(at):
    write(at, {"images/3.png": b"junk"})
    path = table(at, [*lines("ab" * 5), "images/gone.png,a", "images,b"])
    refused("unreadable image .*(gone.png|3.png|images): ", path)
    assert sorted(load_dataset(str(path), seed=0, skip_unreadable=True).skipped) == [
        "images",
        "images/3.png",
        "images/gone.png",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "the first line of .*list.csv lacks path and label"),
        (b"images/0.png,a\n", "lacks path and label"),
        (b"path,class\nimages/0.png,a\n", "lacks label of path,label"),
        (b"path;label\nimages/0.png;a\n", "separate columns by commas"),
        (b"path,label,label\n", "has the column label twice"),
        (b"path,label\n\n , \n", "lists no images"),
        (b"path,label\nimages/0.png,a,b\n", "line 2 has 3 values for 2 columns"),
        (b"path,label\nimages/0.png\n", "line 2 has 1 values for 2 columns"),
        (b"path,label\n,a\n", "line 2: the path is missing"),
        (b"path,label\n\nimages/0.png, \n", "line 3: the label is missing: give the class of images/0.png"),
        (b"path,label\nimages/0.png,a\nimages//0.png,a\n", "line 3 lists images/0.png a second time"),
        (b"path,label\nimages/0.png,a\n./images/0.png,b\n", "line 3 lists images/0.png a second time"),
        (b"path,label\n/etc/passwd,a\n", "line 2: /etc/passwd is absolute"),
        (b"path,label\nimages/../../x.png,a\n", r"line 2: images/../../x.png leaves the folder of the CSV file"),
        (b'path,label\n"a\nb/../x.png",a\n', r"line 3: a\\nb/../x.png leaves the folder"),
        (b"path,label\nimages/\0.png,a\n", "NUL|path is missing"),
        (b"path,label,split\nimages/0.png,a,training\n", "line 2: the split is 'training': give train, test or val"),
        (b"path,label,split\nimages/0.png,a,\n", "line 2: the split is ''"),
        (b"path,label,split\nimages/0.png,a,train\n", "has no test images"),
        (b"path,label,split\nimages/0.png,a,test\n", "has no training images"),
        (b"path,label,split\nimages/0.png,a,train\nimages/1.png,b,test\n", "class 'b' has test images but no training"),
        (b"path,label,group\nimages/0.png,a,p1\nimages/1.png,a,\n", "line 3: the group is missing"),
        (b"path,label,group\nimages/0.png,a,p1\nimages/1.png,a,p1\n", "has one group of each class"),
        (b"path,label\nimages/0.png,\xff\n", "is not a CSV file in UTF-8"),
        (b'path,label\n"images/0.png"x,a\n', "is not a CSV file in UTF-8"),
    ],
)
def test_bad_tables(at, text, says):
    refused(says, table(at, [], text))
