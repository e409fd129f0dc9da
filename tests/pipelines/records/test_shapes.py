"""Names of parts whose records have several numbers of images."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.records.shapes import part_names, part_with_images, part_without_images


def test_the_fewest_images_have_the_plain_name():
    found = ["caption@16", "caption@2", "vqa@16", "caption@1"]
    # Text alone has it only where all of the name is text alone.
    found += ["talk@0", "talk@2", "talk@1", "text@0"]
    assert part_names(found) == {
        "caption@1": "caption",
        "caption@2": "caption@2",
        "caption@16": "caption@16",
        "vqa@16": "vqa",
        "talk@1": "talk",
        "talk@2": "talk@2",
        "talk@0": "talk@0",
        "text@0": "text",
    }


@given(st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 20))))
def test_names_are_different_and_in_no_order(found):
    names = part_names(part_with_images(*one) for one in sorted(found))
    assert names == part_names(part_with_images(*one) for one in sorted(found, reverse=True))
    assert len(set(names.values())) == len(names) == len(found)
    assert {part_without_images(name) for name in names.values()} == {part for part, _ in found}
    assert {one for one in names.values() if part_without_images(one) == one} == {
        part for part, _ in found
    }
