'use strict';
// Legends, read-outs, menus, views and copying. The page can be read without this script.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = document.getElementById('tip');

  // --- which series are shown ---
  const hiddenSeries = new Set();
  const chips = all('[data-toggle]');
  const series = [...new Set(chips.map(c => c.dataset.toggle))];
  function showSeries() {
    for (const e of all('svg [data-g], svg[data-g]')) e.classList.toggle('hidden', hiddenSeries.has(e.dataset.g));
    for (const c of chips) c.setAttribute('aria-pressed', String(!hiddenSeries.has(c.dataset.toggle)));
    for (const b of all('[data-all]')) b.hidden = hiddenSeries.size === 0;
    hideTip();
  }
  function light(figure, g) {
    for (const svg of all('svg.chart', figure)) {
      svg.classList.toggle('lit', g !== null && svg.querySelector(`[data-g="${g}"]`) !== null);
      for (const e of all('[data-g]', svg)) e.classList.toggle('hot', e.dataset.g === g);
    }
  }
  for (const chip of chips) {
    const g = chip.dataset.toggle, figure = chip.closest('figure');
    chip.title = 'Click: hide or show. Shift-click: show alone.';
    chip.addEventListener('click', event => {
      if (event.shiftKey) for (const s of series) s === g ? hiddenSeries.delete(s) : hiddenSeries.add(s);
      else if (!hiddenSeries.delete(g)) hiddenSeries.add(g);
      light(figure, null);
      showSeries();
    });
    for (const on of ['pointerenter', 'focus']) chip.addEventListener(on, () => light(figure, hiddenSeries.has(g) ? null : g));
    for (const off of ['pointerleave', 'blur']) chip.addEventListener(off, () => light(figure, null));
  }
  for (const b of all('[data-all]')) b.addEventListener('click', () => { hiddenSeries.clear(); showSeries(); });

  // --- read-outs ---
  let shownIn = null;
  function hideTip() {
    tip.hidden = true;
    if (shownIn) for (const e of all('.cross, .spot', shownIn)) e.remove();
    shownIn = null;
  }
  function drawn(svg, name, attributes) {
    const e = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    svg.append(e);
  }
  function element(name, className, text) {
    const e = document.createElement(name);
    e.className = className;
    e.textContent = text;
    return e;
  }
  function scaleOf(svg) { return svg.getBoundingClientRect().width / svg.viewBox.baseVal.width; }
  // Beside the point (x, y) of the chart, inside the window.
  function placeTip(svg, x, y) {
    const box = svg.getBoundingClientRect(), scale = scaleOf(svg);
    tip.hidden = false;
    const left = box.left + x * scale, width = tip.offsetWidth, height = tip.offsetHeight;
    const right = left + 14 + width <= innerWidth - 8;
    tip.style.left = Math.max(8, right ? left + 14 : left - 14 - width) + 'px';
    tip.style.top = Math.max(8, Math.min(box.top + y * scale - height / 2, innerHeight - height - 8)) + 'px';
  }

  // A chart of lines: all visible values at one place of the x axis.
  function lineReader(svg) {
    const places = svg.dataset.places.split('|').filter(Boolean).map(p => {
      const at = p.indexOf(':');
      return { x: Number(p.slice(0, at)), text: p.slice(at + 1) };
    });
    const lines = all('g[data-x]', svg).map(g => ({
      g, name: g.dataset.n, x: g.dataset.x.split('|'), y: g.dataset.y.split('|'), v: g.dataset.v.split('|') }));
    return {
      count: places.length,
      nearest(x) {
        let best = 0;
        places.forEach((p, i) => { if (Math.abs(p.x - x) < Math.abs(places[best].x - x)) best = i; });
        return best;
      },
      show(index) {
        const place = places[index], key = place.x.toFixed(1), rows = [];
        for (const line of lines) {
          if (line.g.classList.contains('hidden')) continue;
          const at = line.x.indexOf(key);
          if (at >= 0) rows.push({ line, y: line.y[at] === '' ? null : Number(line.y[at]), v: line.v[at] });
        }
        rows.sort((a, b) => (a.y ?? Infinity) - (b.y ?? Infinity));
        tip.replaceChildren(element('b', '', place.text));
        drawn(svg, 'line', { class: 'cross', x1: place.x, x2: place.x, y1: svg.dataset.top, y2: svg.dataset.bottom });
        for (const { line, y, v } of rows) {
            const row = element('div', 'row', ''),
                  swatch = document.querySelector(`[data-toggle="${line.g.dataset.g}"] .swatch`);
            row.append(
                swatch ? swatch.cloneNode(true) : '', element('span', 'name', line.name),
                element('span', '', v));
            tip.append(row);
            if (y !== null) drawn(svg, 'circle', {class: 'spot', cx: place.x, cy: y, r: 5});
        }
        placeTip(svg, place.x, (Number(svg.dataset.top) + Number(svg.dataset.bottom)) / 2);
      },
    };
  }
  // A chart of single items: the one under the pointer.
  function itemReader(svg) {
    const items = () => all('.item', svg).filter(e => !e.classList.contains('hidden'));
    return {
      get count() { return items().length; },
      nearest(x, y) {
        let best = 0, least = Infinity;
        items().forEach((e, i) => {
          const dy = Math.abs(e.dataset.py - y), d = svg.classList.contains('heat') ? Math.hypot(e.dataset.px - x, dy) : dy;
          if (d < least) { least = d; best = i; }
        });
        return best;
      },
      show(index) {
        const e = items()[index], lines = e.dataset.tip.split('\n');
        tip.replaceChildren(element('b', '', lines[0]), document.createTextNode(lines.slice(1).join('\n')));
        drawn(svg, 'circle', { class: 'spot', cx: e.dataset.px, cy: e.dataset.py, r: svg.classList.contains('heat') ? 13 : 7 });
        placeTip(svg, Number(e.dataset.px), Number(e.dataset.py));
      },
    };
  }
  for (const svg of all('svg[data-kind]')) {
    let reader = null, index = -1;
    const show = i => {
      reader ??= svg.dataset.kind === 'lines' ? lineReader(svg) : itemReader(svg);
      hideTip();
      if (reader.count === 0) return;
      index = Math.max(0, Math.min(reader.count - 1, typeof i === 'function' ? i(reader) : i));
      shownIn = svg;
      reader.show(index);
    };
    const follow = event => {
      const box = svg.getBoundingClientRect(), scale = scaleOf(svg);
      show(r => r.nearest((event.clientX - box.left) / scale, (event.clientY - box.top) / scale));
    };
    svg.addEventListener('pointermove', follow);
    svg.addEventListener('pointerdown', follow);
    svg.addEventListener('pointerleave', hideTip);
    svg.addEventListener('blur', hideTip);
    svg.addEventListener('keydown', event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === 'Escape') hideTip();
      else if (event.key === 'Home') show(0);
      else if (event.key === 'End') show(r => r.count - 1);
      else if (step) show(r => (index < 0 && step < 0 ? r.count : index) + step);
      else return;
      event.preventDefault();
    });
  }
  addEventListener('scroll', hideTip, { passive: true });

  // --- menus ---
  for (const menus of all('[data-menus]')) {
    const id = menus.dataset.menus, selects = all('select', menus);
    const pieces = all(`[data-piece="${id}"]`), none = document.querySelector(`[data-none="${id}"]`);
    const choose = () => {
      const key = selects.map(s => s.value).join('|');
      for (const p of pieces) p.hidden = p.dataset.key !== key;
      none.hidden = pieces.some(p => !p.hidden);
      hideTip();
    };
    for (const s of selects) s.addEventListener('change', choose);
    choose();  // a browser may have kept an earlier choice
  }

  // --- views of a chart ---
  for (const button of all('[data-show]')) {
      const figure = button.closest('figure');
      button.addEventListener('click', () => {
          for (const b of all('[data-show]', figure)) b.setAttribute('aria-pressed', String(b === button));
          for (const v of all('[data-view]', figure)) v.hidden = v.dataset.view !== button.dataset.show;
          hideTip();
      });
  }

  // --- copying ---
  // CSV has the full precision, a mean and its error in columns of their own; Markdown and LaTeX what is shown.
  function tableAsCsv(table) {
    const rows = all('tr', table).map(tr => [...tr.children].map(c => (c.dataset.v ?? c.textContent).split(' ± ')));
    const width = rows[0].map((_, i) => Math.max(...rows.map(r => r[i]?.length ?? 1)));
    const quote = text => /[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
    return rows.map((row, r) => row.flatMap((cell, i) => {
      const parts = r === 0 && width[i] > 1 ? [cell[0], cell[0] + ' standard error'] : [...cell];
      while (parts.length < width[i]) parts.push('');
      return parts.map(quote);
    }).join(',')).join('\n') + '\n';
  }
  function tableAsMarkdown(table) {
    const rows = all('tr', table).map(tr => [...tr.children].map(c => c.textContent.replace(/[\\|]/g, '\\$&').replace(/</g, '&lt;')));
    const rule = [...table.querySelector('tbody tr, tr').children].map(c => c.classList.contains('n') ? '---:' : '---');
    return [rows[0], rule, ...rows.slice(1)].map(r => '| ' + r.join(' | ') + ' |').join('\n') + '\n';
  }
  async function toClipboard(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = element('textarea', '', '');
      area.value = text;
      area.style.cssText = 'position:fixed;opacity:0';
      document.body.append(area);
      area.select();
      const copied = document.execCommand('copy');
      area.remove();
      if (!copied) throw new Error('refused');
    }
  }
  for (const button of all('[data-copy]')) {
    const label = button.textContent;
    button.addEventListener('click', async () => {
      const box = button.closest('.table, .source'), table = box.querySelector('table');
      const forms = { csv: () => tableAsCsv(table), markdown: () => tableAsMarkdown(table), text: () => box.querySelector('pre').textContent };
      try {
        await toClipboard(forms[button.dataset.copy]());
        button.textContent = 'Copied';
      } catch {
        button.textContent = 'The browser refused';
      }
      setTimeout(() => { button.textContent = label; }, 1500);
    });
  }

  // --- a page that is drawn again while runs train ---
  // What a reader has chosen is kept in the history entry, which survives loading the file again.
  const boxes = () => all('.scroll');
  function keep() {
    history.replaceState({
      top: scrollY, hidden: [...hiddenSeries], open: all('details').map(d => d.open), choices: all('[data-menus] select').map(s => s.value),
      views: all('[data-show][aria-pressed=true]').map(b => all('[data-show]').indexOf(b)), boxes: boxes().map(b => [b.scrollLeft, b.scrollTop]),
    }, '');
  }
  function restore(kept) {
    for (const g of kept.hidden) if (series.includes(g)) hiddenSeries.add(g);
    showSeries();
    all('details').forEach((d, i) => { d.open = kept.open[i] ?? d.open; });
    all('[data-menus] select').forEach((s, i) => {
      if (![...s.options].some(o => o.value === kept.choices[i])) return;
      s.value = kept.choices[i];
      s.dispatchEvent(new Event('change'));
    });
    for (const i of kept.views) all('[data-show]')[i]?.click();
    boxes().forEach((b, i) => { if (kept.boxes[i]) b.scrollTo(...kept.boxes[i]); });
    scrollTo({ top: kept.top, behavior: 'instant' });
  }
  const seconds = Number(document.body.dataset.reload ?? 0);
  if (history.state?.top !== undefined) {
    history.scrollRestoration = 'manual';
    restore(history.state);
    history.replaceState(null, '');
    history.scrollRestoration = 'auto';
  }
  // Counted from the end of loading: on a busy machine a large page can take longer to load than it waits.
  if (seconds > 0) addEventListener('load', () => setTimeout(() => { keep(); location.reload(); }, 1000 * seconds));

  // --- where we are in the table of contents ---
  const links = new Map(all('nav a').map(a => [a.hash.slice(1), a]));
  if ('IntersectionObserver' in window) {
    const seen = new Map();
    const observer = new IntersectionObserver(entries => {
      for (const e of entries) seen.set(e.target.id, e.isIntersecting);
      const here = [...links.keys()].find(id => seen.get(id));
      for (const [id, a] of links) a.classList.toggle('here', id === here);
    }, { rootMargin: '-15% 0px -60% 0px' });
    for (const id of links.keys()) observer.observe(document.getElementById(id));
  }
})();
