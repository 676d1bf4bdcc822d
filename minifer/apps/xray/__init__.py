"""The x-ray: one page that shows a whole run of the engine, step by step.

    record.py   run prompts for real and note, beside the trace, where each step's time went and what was drawn
    page.py     put traces, measured ceilings, style and scripts into one file that cannot be broken out of
    page/       the page itself: page.html, page.css, and one small script for each idea

The page computes everything it says from the trace: the sentences, the map of the blocks, the quiz. So the file that
`minifer xray` writes, the page of a recorded trace and the live page of `minifer serve` are the same page with other
records in it. `minifer/apps/view/trace_model.py` reads the same traces for figures; a test holds the two together.
"""

from minifer.apps.xray.page import live_page, page_of

__all__ = ["live_page", "page_of"]
