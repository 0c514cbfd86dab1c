"""Markdown, the part of it that the documents of this repository use, as HTML: headings, paragraphs, lists of one level,
tables, blocks of code (indented or fenced), links, images, strong and emphasised text, code. What it does not understand is a
Problem with file and line, so that no text is shown in another form than its author's.
"""
import html
import re

HEADING = re.compile(r"(#{1,6}) +(.+?) *#*$")
BULLET = re.compile(r"(- |\d+\. )(.+)")
FENCE = re.compile(r"(```+)([\w+-]*)$")
TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9-]*(?:\s+[\w:.-]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'=<>`]+))?)*\s*/?>|<!--")
UNKNOWN = [
    (re.compile(r">"), "a quotation"),
    (re.compile(r"([-*_] *){3,}$|=+$|--+$"), "a rule or an underlined heading"),
    (re.compile(r"[*+] |\d+\) "), "this kind of list (write - or 1.)"),
    (re.compile(r"\[[^\]]+\]: "), "the address of a link apart from its text"),
    (re.compile(r"~~~"), "this kind of fence (write ```)"),
    (re.compile(r"#{1,6}[^# ]|#{7}"), "this heading (write a space after #)"),
]


class Problem(Exception):
    def __init__(self, file, line, what):
        super().__init__(f"{file}:{line}: {what}")


class Block:
    """kind: heading, paragraph, code, list, table. text: of the first three, a string; items: [(line, text)] of a list, rows
    [(line, [cell])] of a table, of which the first is the header."""

    def __init__(self, kind, line, text="", items=(), level=0, aligned=()):
        self.kind, self.line, self.text, self.items, self.level, self.aligned = kind, line, text, list(items), level, aligned


def slug(heading, taken):
    """The name that GitHub gives to a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    base = name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
    repeated = 0
    while name in taken:
        repeated += 1
        name = f"{base}-{repeated}"
    taken.add(name)
    return name


def cells_of(line, file, number):
    if not re.match(r"\|.*\|$", line):
        raise Problem(file, number, "a row of a table begins and ends with |")
    parts = re.split(r"(?<!\\)\|", line[1:-1])
    return [part.strip().replace("\\|", "|") for part in parts]


def table_of(lines, at, file):
    start = at
    while at < len(lines) and lines[at].startswith("|"):
        at += 1
    rows = [(n + 1, cells_of(lines[n].rstrip(), file, n + 1)) for n in range(start, at)]
    if len(rows) < 2 or not all(re.fullmatch(r":?-+:?", cell) for cell in rows[1][1]):
        raise Problem(file, start + 1, "a table needs a line such as |---|---:| under its header")
    for number, row in rows:
        if len(row) != len(rows[0][1]):
            raise Problem(file, number, f"{len(row)} cells under {len(rows[0][1])} columns")
    aligned = ["n" if cell.endswith(":") else "" for cell in rows[1][1]]
    return at, Block("table", start + 1, items=rows[:1] + rows[2:], aligned=aligned)


def list_of(lines, at, file):
    start, items = at, []
    ordered = lines[at][0] != "-"
    while at < len(lines):
        line = lines[at]
        found = BULLET.match(line)
        if found:
            if (found[1] != "- ") != ordered:
                raise Problem(file, at + 1, "a list of two kinds")
            items.append((at + 1, found[2]))
        elif re.match(r"\s+(- |\d+\. )", line):
            raise Problem(file, at + 1, "a list inside a list")
        elif line.strip():
            items[-1] = (items[-1][0], items[-1][1] + "\n" + line.strip())
        else:
            following = lines[at + 1] if at + 1 < len(lines) else ""
            if following.startswith(" "):
                raise Problem(file, at + 2, "a second paragraph, or code, inside a list")
            if not BULLET.match(following):
                break
        at += 1
    return at, Block("list", start + 1, items=items, level=int(ordered))


def blocks_of(text, file):
    lines = text.split("\n")
    out, at = [], 0
    while at < len(lines):
        line, number = lines[at], at + 1
        if not line.strip():
            at += 1
        elif FENCE.match(line):
            end = at + 1
            while end < len(lines) and lines[end].rstrip() != FENCE.match(line)[1]:
                end += 1
            if end == len(lines):
                raise Problem(file, number, "this fence is not closed")
            out.append(Block("code", number, "\n".join(lines[at + 1:end])))
            at = end + 1
        elif line.startswith("    "):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            out.append(Block("code", number, "\n".join(part[4:] for part in lines[at:end]).rstrip()))
            at = end
        elif HEADING.match(line):
            found = HEADING.match(line)
            out.append(Block("heading", number, found[2], level=len(found[1])))
            at += 1
        elif line.startswith("|"):
            at, block = table_of(lines, at, file)
            out.append(block)
        elif BULLET.match(line):
            at, block = list_of(lines, at, file)
            out.append(block)
        else:
            end = at
            while end < len(lines) and lines[end].strip():
                if end > at and re.match(r"- |1\. |#{1,6} |```", lines[end]):
                    break
                if end > at and lines[end].startswith("|"):
                    raise Problem(file, end + 1, "a table needs an empty line before it")
                for pattern, what in UNKNOWN:
                    if pattern.match(lines[end].lstrip()):
                        raise Problem(file, end + 1, f"this renderer does not know {what}")
                if lines[end].endswith(("  ", "\\")):
                    raise Problem(file, end + 1, "a line break inside a paragraph")
                end += 1
            out.append(Block("paragraph", number, "\n".join(part.strip() for part in lines[at:end])))
            at = end
    return out


def section_of(blocks, name):
    """The blocks from the heading with this text to the next one of its level or above; nothing if there is no such heading."""
    start = next((i for i, b in enumerate(blocks) if b.kind == "heading" and b.text == name), None)
    if start is None:
        return []
    end = start + 1
    while end < len(blocks) and not (blocks[end].kind == "heading" and blocks[end].level <= blocks[start].level):
        end += 1
    return blocks[start:end]


class Inline:
    """Text inside a block. link(address, line) is the address in the site, or None for one that has no place there;
    picture(address, alt, line) is the HTML of an image; cite(key) the address of a source, or None."""

    def __init__(self, file, link, picture, cite):
        self.file, self.link, self.picture, self.cite = file, link, picture, cite

    def render(self, text, line):
        out, at = [], 0
        while at < len(text):
            piece, at = self.piece(text, at, line + text.count("\n", 0, at))
            out.append(piece)
        return "".join(out)

    def piece(self, text, at, line):
        rest = text[at:]
        letter = rest[0]
        if letter == "\\" and re.match(r"\\[!-/:-@\[-`{-~]", rest):
            return html.escape(rest[1]), at + 2
        if letter == "`":
            found = re.match(r"(`+)(.+?)(?<!`)\1(?!`)", rest, re.S)
            if not found:
                raise Problem(self.file, line, "this ` has no other")
            return f"<code>{html.escape(found[2].replace(chr(10), ' '))}</code>", at + found.end()
        if letter == "[" or rest.startswith("!["):
            return self.bracket(text, at, line)
        if letter == "*":
            return self.emphasis(text, at, line)
        if letter == "<" and (found := re.match(r"<(https?://[^\s<>]+)>", rest)):
            return self.linked(found[1], html.escape(found[1]), line), at + found.end()
        if letter == "<" and TAG.match(rest):
            raise Problem(self.file, line, f"{TAG.match(rest)[0]}: HTML; write it as `code`")
        if letter == "&" and re.match(r"&(#?\w+);", rest):
            raise Problem(self.file, line, "an entity of HTML; write the letter itself")
        if letter == "_" and re.match(r"_\w[^_\n]*_(?!\w)", rest) and not re.match(r"\w", text[at - 1:at]):
            raise Problem(self.file, line, "emphasis with _; write *")
        found = re.match(r"[^\\`\[!*<&_]+", rest)
        length = found.end() if found else 1
        return html.escape(rest[:length], quote=False), at + length

    def bracket(self, text, at, line):
        image = text[at] == "!"
        start = at + 2 if image else at + 1
        depth, end = 1, start
        while end < len(text) and depth:
            depth += {"[": 1, "]": -1}.get(text[end], 0)
            end += 1
        inner = text[start:end - 1]
        address = re.match(r"\((\S+?)\)", text[end:]) if not depth else None
        if address:
            after = end + address.end()
            if image:
                return self.picture(address[1], inner.replace("\n", " "), line), after
            return self.linked(address[1], self.render(inner, line), line), after
        if not depth and re.match(r"[\[(]\S*[\])]", text[end:]):
            raise Problem(self.file, line, f"[{inner}]{text[end:end + 12]}: neither a link nor plain text")
        if not depth and not image and (source := self.cite(inner)):
            return f'[<a href="{html.escape(source)}">{html.escape(inner)}</a>]', end
        if interval := re.fullmatch(r"([-+]?[\d.]+),\s([-+]?[\d.]+)", inner):
            return f"[{interval[1]},&nbsp;{interval[2]}]", end
        return text[at], at + 1

    def linked(self, address, shown, line):
        to = self.link(address, line)
        return f'<a href="{html.escape(to)}">{shown}</a>' if to else shown

    def emphasis(self, text, at, line):
        marks = "**" if text.startswith("**", at) else "*"
        if re.match(r"\s", text[at + len(marks):at + len(marks) + 1] or " "):
            if marks == "*" and (at == 0 or text[at - 1].isspace()):
                return "*", at + 1
            raise Problem(self.file, line, f"this {marks} ends nothing; write \\* or `code`")
        end = at + len(marks)
        while not (text.startswith(marks, end) and not text[end - 1].isspace()):
            if end >= len(text):
                raise Problem(self.file, line, f"this {marks} has no other")
            code = re.match(r"(`+).+?(?<!`)\1(?!`)", text[end:], re.S)
            end += code.end() if code else 1
        name = "strong" if marks == "**" else "em"
        return f"<{name}>{self.render(text[at + len(marks):end], line)}</{name}>", end + len(marks)


def render(blocks, inline, up=0):
    """up: by how much each heading rises, so that a section can be a page. Only the first heading is the page's."""
    out, taken = [], set()
    for b in blocks:
        if b.kind == "heading":
            level = max(2 if taken else 1, b.level - up)
            out.append(f'<h{level} id="{slug(b.text, taken)}">{inline.render(b.text, b.line)}</h{level}>')
        elif b.kind == "code":
            out.append(f'<pre tabindex="0"><code>{html.escape(b.text, quote=False)}</code></pre>')
        elif b.kind == "list":
            name = "ol" if b.level else "ul"
            items = "\n".join(f"<li>{inline.render(text, line)}</li>" for line, text in b.items)
            out.append(f"<{name}>\n{items}\n</{name}>")
        elif b.kind == "table":
            out.append(table(b, inline))
        else:
            text = inline.render(b.text, b.line)
            alone = re.fullmatch(r"<figure>((?!<figure>).)*</figure>", text, re.S)
            if "<figure>" in text and not alone:
                raise Problem(inline.file, b.line, "a picture needs a paragraph of its own")
            out.append(text if alone else f"<p>{text}</p>")
    return "\n".join(out) + "\n"


def table(b, inline):
    def row(line, cells, name):
        return "<tr>" + "".join(
            f"<{name}{' class=n' if kind else ''}>{inline.render(cell, line)}</{name}>" for cell, kind in zip(cells, b.aligned)) + "</tr>"
    head, *body = b.items
    rows = "\n".join(row(line, cells, "td") for line, cells in body)
    label = html.escape(", ".join(re.sub(r"[`*\[\]]", "", cell) for cell in head[1] if cell))
    return (f'<div class="scroll" tabindex="0" role="region" aria-label="Table: {label}"><table>\n<thead>{row(*head, "th")}</thead>\n'
            f"<tbody>\n{rows}\n</tbody></table></div>")
