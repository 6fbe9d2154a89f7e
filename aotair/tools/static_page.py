"""A page that stands alone: one file without scripts, for which a browser fetches nothing."""

import html

from aotair_runtime.errors import in_line

# Whatever got into the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; border-bottom: 1px solid #8886; text-align: left; vertical-align: top; }
pre { margin: .2rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { width: 100%; border: 1px solid #8886; }
"""


def static_page(title: str, body: str, style: str) -> str:
    """The whole page; `title` is a text, `body` is HTML, `style` what the page has beside what all have."""
    shown = html.escape(in_line(title))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{shown}</title>'
        f"<style>{_STYLE}{style}</style></head>\n<body>\n<h1>{shown}</h1>\n{body}\n</body></html>\n"
    )
