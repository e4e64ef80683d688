"""A spare whose link is cut for a while must not depose a leader that is well."""

from __future__ import annotations

import time

import pytest

from .client import sending
from .long import only_in_all


@pytest.mark.parametrize(("beside", "down_s"), [
    ("", 1), only_in_all("", 4),
    ("w2", 1), only_in_all("w2", 4),
    only_in_all("f2", 1), only_in_all("f2", 4)])
def test_a_spare_whose_link_was_down_leaves_the_leader_its_epoch(each_box, net, beside, down_s):
    box = each_box
    first, second, third, spare = (net.host(name) for name in ("first", "second", "third", "spare"))
    box.start_all({"e1": third, "s1": first, "w1": second, "f1": third, "s2": spare, **({beside: spare} if beside else {})})
    with box.led_by("s1", tapped=spare), sending(box.http("f1")) as client:
        net.link_down(spare)
        time.sleep(down_s)
        net.link_up(spare)
        box.whole()
        client.wait_for_more(30)
