"""tools/gallery: the same tree makes the same bytes; every link leads somewhere; nothing is requested from elsewhere; directories
of others stay as they are; Markdown that it does not know is refused by file and line.

    gallery_test.py PROGRAM ROOT     with the interactive page of every sweep
    gallery_test.py --page ROOT      its pages in a browser, light and dark, at three widths; 77 without chromium
"""
import html.parser
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
WIDTHS = (360, 800, 1400)
failures = []


def check(ok, what):
    if not ok:
        failures.append(what)


def gallery(root, directory, program="/nonexistent/longreach"):
    return subprocess.run([root / "tools/gallery", directory], text=True, capture_output=True, env={**os.environ, "LONGREACH": str(program)})


def files_of(directory):
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


class Page(html.parser.HTMLParser):
    """What a page names and requests, and whether its elements are closed in order."""
    VOID = {"meta", "link", "img", "br", "path"}

    def __init__(self, text):
        super().__init__()
        self.links, self.requests, self.ids, self.alts, self.open, self.wrong = [], [], set(), [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        at = dict(attributes)
        if "id" in at:
            if at["id"] in self.ids:
                self.wrong.append(f"id {at['id']} twice")
            self.ids.add(at["id"])
        if tag == "a":
            self.links.append(at["href"])
        elif tag == "link":
            self.requests.append(at["href"])
        elif "src" in at:
            self.requests.append(at["src"])
        if tag == "script" or any(name.startswith("on") for name in at):
            self.wrong.append(f"<{tag}> runs a script")
        if tag == "img":
            self.alts.append(at.get("alt", ""))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")


def problems_of(files):
    """What is wrong with the pages of a site, {address: bytes}. The interactive pages have a test of their own (report_page)."""
    out = []
    pages = {a: Page(content.decode()) for a, content in files.items() if a.endswith(".html") and not a.startswith("reports/")}
    for address, page in pages.items():
        out += [f"{address}: {w}" for w in page.wrong] + [f"{address}: <{tag}> stays open" for tag in page.open]
        out += [f"{address}: a picture without words" for alt in page.alts if not alt.strip()]
        for target in page.requests:
            if not target.startswith("data:,") and (":" in target or posixpath.normpath(posixpath.join(posixpath.dirname(address), target)) not in files):
                out.append(f"{address}: requests {target}")
        for target in page.links:
            if re.match(r"https?://", target):
                continue
            path, _, anchor = target.partition("#")
            to = posixpath.normpath(posixpath.join(posixpath.dirname(address), path)) if path else address
            if to not in files:
                out.append(f"{address}: {target}: there is no such page")
            elif anchor and anchor not in pages[to].ids:
                out.append(f"{address}: {target}: there is no such heading")
    for address, content in files.items():
        if address.endswith((".css", ".svg")):
            for name in re.findall(rb"url\([^)]*\)|@import[^;]*|(?:href|src)\s*=\s*[\"'][^\"']*", content):
                if not re.fullmatch(rb"url\(#[\w-]+\)", name):
                    out.append(f"{address}: requests {name.decode()}")
    return out


def check_site(root, program, work):
    first, second = work / "first", work / "second"
    made = [gallery(root, d, program) for d in (first, second)]
    check(all(m.returncode == 0 and not m.stderr for m in made), f"it fails: {made[0].stderr}")
    files = files_of(first)
    check(files == files_of(second), "made twice, it differs")
    for problem in problems_of(files):
        check(False, problem)
    studies = [p.stem for p in (root / "runs/studies").glob("*.md") if p.stem != "README"]
    kept = [p.parent.name for p in (root / "runs/reference").glob("*/sweep.json")]
    check(len(studies) >= 12 and len(kept) >= 19, "hardly any studies")
    index = files["index.html"].decode()
    for study in studies:
        check(f'href="studies/{study}.html"' in index, f"no card for {study}")
        swept = study in kept  # the page of a model that others trained has no sweep
        check((f'href="reports/{study}.html"' in index) == swept, f"no interactive page for {study}, or one without a sweep")
    check(index.count('<article class="card">') == len(studies), "not one card for each study")
    check(sorted(a for a in files if a.startswith("reports/")) == sorted(f"reports/{k}.html" for k in kept), "not one page for each sweep")
    check("-0.458 [-0.902,&nbsp;-0.013]" in index, "a verdict of study 4 is missing")
    check(b"C3-5: scores are about Gaussian" in files["verdicts.html"], "the verdicts are not all there")
    # The self-test of the checks: what they must find.
    for wrong in ('<img src="https://x.org/a.png" alt="a">', '<a href="no.html">x</a>', '<a href="#no">x</a>', "<p>", "<script>1</script>",
                  '<img src="style.css" alt="">'):
        broken = {**files, "glossary.html": files["glossary.html"].replace(b"</main>", wrong.encode() + b"</main>")}
        check(problems_of(broken), f"the check does not find {wrong}")
    check(problems_of({**files, "style.css": b"@import 'https://x.org/a.css';"}), "the check does not find an import")

    # Made again over itself, then refused once a file is changed, added or a link.
    check(gallery(root, second).returncode == 0, "it does not replace itself")
    without = files_of(second)
    check(not any(a.startswith("reports/") for a in without), "files of the earlier gallery are left")
    check("not drawn" in without["index.html"].decode() and not problems_of(without), "without the program it is not whole")
    (second / "index.html").write_text("mine")
    check_refused(root, second, "index.html")
    shutil.rmtree(second)
    gallery(root, second)
    (second / "notes.txt").write_text("mine")
    check_refused(root, second, "notes.txt")


def check_refused(root, directory, name):
    before = files_of(directory)
    made = gallery(root, directory)
    check(made.returncode == 2 and name in made.stderr, f"{name}: {made.returncode} {made.stderr}")
    check(files_of(directory) == before, f"{name}: the directory was changed")


def check_directories(root, work):
    (work / "empty").mkdir()
    check(gallery(root, work / "empty").returncode == 0, "an empty directory is refused")
    foreign = work / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    check_refused(root, foreign, "neither empty nor a gallery")
    (foreign / "longreach_gallery.json").write_text('{"files": []}')
    check_refused(root, foreign, "thesis.txt")
    (foreign / "longreach_gallery.json").write_text('["files"]')
    check_refused(root, foreign, "neither empty nor a gallery")
    (work / "link").symlink_to(foreign)
    check_refused(root, work / "link", "neither empty nor a gallery")
    (work / "file").write_text("mine")
    check(gallery(root, work / "file").returncode == 2 and (work / "file").read_text() == "mine", "a file is not refused")
    check(not [p for p in work.iterdir() if p.name.startswith(".")], "something is left next to the directory")


KNOWN = {
    "# A *b*": '<h1 id="a-b">A <em>b</em></h1>',
    "a **b `*` c** < d & \\* e": "<p>a <strong>b <code>*</code> c</strong> &lt; d &amp; * e</p>",
    "2 * 3 <q, k> snake_case_name": "<p>2 * 3 &lt;q, k&gt; snake_case_name</p>",
    "by 0.2 [0.1, 0.3] as [key] has": '<p>by 0.2 [0.1,&nbsp;0.3] as [<a href="s">key</a>] has</p>',
    "[x `y`](z.md) [gone](none.md)": '<p><a href="z.md">x <code>y</code></a> gone</p>',
    "- a\n  b\n- c": "<ul>\n<li>a\nb</li>\n<li>c</li>\n</ul>",
    "1. a\n2. b": "<ol>\n<li>a</li>\n<li>b</li>\n</ol>",
    "    a < b\n\n    c": '<pre tabindex="0"><code>a &lt; b\n\nc</code></pre>',
    "```sh\n# a\n```": '<pre tabindex="0"><code># a</code></pre>',
    "| a | b |\n|---|---:|\n| `x \\| y` | 2 |": "<td><code>x | y</code></td><td class=n>2</td>",
}
UNKNOWN = ["<b>a</b>", "a<br>b", "> a", "a\n---", "---", "* a", "- a\n  - b", "- a\n\n  b", "a  \nb", "a\\\nb", "[a]: b", "[a][b]", "a `b", "a **b",
           "a *b", "_a_", "&amp;", "| a |\n| b |", "| a |\n|---|\n| b | c |", "a\n| b |", "```\na", "#a", "~~~\na\n~~~", "<!-- a -->", "+ a", "1) a"]


def check_markdown(root):
    sys.path.insert(0, str(root / "tools/site"))
    import markdown

    def rendered(text):
        inline = markdown.Inline("f.md", lambda a, line: None if a.startswith("none") else a, None, lambda key: "s" if key == "key" else None)
        return markdown.render(markdown.blocks_of(text + "\n", "f.md"), inline)

    for text, expected in KNOWN.items():
        check(expected in rendered(text), f"{text!r}: {rendered(text)!r}")
    for text in UNKNOWN:
        try:
            check(False, f"not refused: {text!r}: {rendered('a' + chr(10) * 2 + text)!r}")
        except markdown.Problem as e:
            check(re.match(r"f\.md:[3-6]: ", str(e)), f"{text!r}: {e}")


# Runs in every page: nothing is wider than the window, and text can be told from what is behind it.
CHECKS = """
addEventListener('load', () => {
  const failures = [], all = s => [...document.querySelectorAll(s)];
  if (document.documentElement.scrollWidth > innerWidth) failures.push(`scrolls sideways: ${document.documentElement.scrollWidth} of ${innerWidth}`);
  for (const e of all('h1, h2, h3, p, ul, .scroll, figure, pre, .card, nav'))
    if (e.getBoundingClientRect().right > innerWidth + 0.5) failures.push('sticks out: ' + e.outerHTML.slice(0, 70));
  const luminance = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!c.endsWith(', 0)')) return c; } };
  const ratio = (a, b) => { const x = luminance(a), y = luminance(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
  let texts = 0;
  for (const e of all('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    ++texts;
    const r = ratio(getComputedStyle(e).color, behind(e));
    if (r < 4.5) { failures.push(`contrast ${r.toFixed(2)} of ` + e.outerHTML.slice(0, 70)); break; }
  }
  if (texts < 10) failures.push('hardly any text');
  if (luminance(behind(document.body)) < 0.1 !== location.hash.includes('dark')) failures.push('not ' + location.hash);
  for (const i of all('img')) if (!i.complete && i.loading !== 'lazy' || i.complete && !i.naturalWidth) failures.push('no picture ' + i.src);
  if (innerWidth < 500 && all('.scroll').length && parseFloat(getComputedStyle(document.body).fontSize) < 15) failures.push('small letters');
  parent.postMessage({ frame: location.pathname + location.hash, failures }, '*');
});
"""


def check_pages(root, work):
    browser = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)
    if not browser:
        print("skipped: no chromium here (tools/setup --tests installs it)")
        sys.exit(77)
    site = work / "site"
    check(gallery(root, site).returncode == 0, "it fails")
    pages = sorted(p for p in site.rglob("*.html"))
    check(len(pages) >= 20, "hardly any pages")
    for page in pages:
        page.write_text(page.read_text().replace("<head>", f"<head><script>{CHECKS}</script>", 1))
    for scheme, name in enumerate(("dark", "light")):
        frames = "".join(f'<iframe style="border:0;width:{w}px;height:800px;color-scheme:{name}" src="site/{p.relative_to(site)}#{name}-{w}"></iframe>'
                         for p in pages for w in WIDTHS)
        (work / "frames.html").write_text(f"""<!doctype html><meta charset="utf-8"><pre id="verdict"></pre><script>
addEventListener('message', e => {{ for (const f of ['DONE', ...e.data.failures])
  document.getElementById('verdict').textContent += 'SAID ' + e.data.frame.replace(/.*site/, '') + ' ' + f + '\\n'; }});
</script>{frames}""")
        ran = subprocess.run([browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                              f"--user-data-dir={work}/profile", "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1500,1000",
                              f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=30000", "--dump-dom",
                              f"file://{work}/frames.html"], text=True, capture_output=True, timeout=150)
        said = re.findall(r"SAID (\S+) (.*)", ran.stdout.split("</pre>")[0])
        check(sum(what == "DONE" for _, what in said) == len(pages) * len(WIDTHS), f"the checks did not end: {len(said)} {ran.stderr[-300:]}")
        for frame, what in said:
            check(what == "DONE", f"{frame} {html.unescape(what)}")


def main():
    in_browser = sys.argv[1] == "--page"
    root = pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        if in_browser:
            check_pages(root, work)
        else:
            check_markdown(root)
            check_directories(root, work)
            check_site(root, pathlib.Path(sys.argv[1]).resolve(), work)
    print("\n".join(failures) or "the gallery passes")
    sys.exit(bool(failures))


main()
