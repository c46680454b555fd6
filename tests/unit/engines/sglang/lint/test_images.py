"""Rules about images, on the inventory of the first deployment."""

from pathlib import Path

from tests.unit.lint.support_lint import Edit, errors


def test_pitfall_1_an_image_with_cuda_13_on_driver_545(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "tag: v0.5.19-cu129", "tag: v0.5.20")
    edit("node1.yml", 'driver: "580.126.09"', 'driver: "545.23.06"')
    (found,) = errors(hosts)
    assert (found.rule, found.file) == ("L001", str(hosts / "node1.yml"))
    assert (hosts / "node1.yml").read_text().splitlines()[found.line - 1].startswith("driver:")
    assert "12.3" in found.reason
    assert "13.0" in found.reason
