// Runs inside the report, before its own script: watches for errors, then tries what a reader would do and sends
// the list of failures to the page around it.
'use strict';
(() => {
  const failures = [];
  const check = (ok, what) => { if (!ok) failures.push(what); };
  addEventListener('error', e => failures.push('error: ' + (e.message || e.target?.src)), true);
  addEventListener('unhandledrejection', e => failures.push('unhandled: ' + e.reason));
  let refused = 0, refusal = false;  // what the page's policy refuses; once it is expected to
  addEventListener('securitypolicyviolation', e => refusal ? ++refused : failures.push('policy violation: ' + e.blockedURI + ' ' + e.violatedDirective));
  let copied = null;
  Object.defineProperty(navigator, 'clipboard', { value: { writeText: async text => { copied = text; } } });
  const pause = () => new Promise(done => setTimeout(done, 20));
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const shown = e => e.getClientRects().length > 0;

  // No text of a visible chart is cut off, and none is too small to read.
  function checkTexts() {
    for (const svg of all('svg.chart').filter(shown)) {
      const box = svg.getBoundingClientRect();
      for (const t of all('text', svg)) {
        const r = t.getBoundingClientRect();
        if (r.width && (r.left < box.left - 2 || r.right > box.right + 2 || r.bottom > box.bottom + 2)) check(false, 'text cut off: ' + t.textContent + ' in ' + svg.querySelector('title').textContent);
      }
      const tick = svg.querySelector('text.tick');
      if (tick) {
        const height = tick.getBoundingClientRect().height;
        check(height >= 9, `letters ${height} pixels high in ${svg.querySelector('title').textContent}`);
      }
    }
  }

  // Scrolled to its end, a table shows its last column whole and its first still.
  function checkTables() {
    for (const box of all('.scroll').filter(shown)) {
      const table = box.querySelector('table'), name = table.caption.textContent;
      box.scrollLeft = box.scrollWidth;
      const inner = box.getBoundingClientRect();
      check(inner.right <= innerWidth + 0.5, 'a table sticks out: ' + name);
      for (const row of [...table.rows].slice(0, 3)) {
        const first = row.cells[0].getBoundingClientRect(), last = row.cells[row.cells.length - 1].getBoundingClientRect();
        check(last.right <= inner.right + 0.5, 'the last column is cut: ' + name);
        check(Math.abs(first.left - inner.left) < 1.5, `the first column is gone by ${first.left - inner.left}: ${name}`);
        if (row.cells.length > 1) check(last.left >= first.right - 0.5 || last.right - first.right > 24, 'the first column covers the last: ' + name);
      }
      box.scrollLeft = 0;
    }
  }

  async function run() {
    const dark = location.hash.includes('dark'), narrow = innerWidth < 500;

    // Everything that the sample holds appears.
    for (const name of ['loss-by-length', 'differences-8192', 'training-loss', 'validation-8192', 'gradient-norms', 'positions-sequence',
                        'positions-document', 'key-tokens', 'other-tokens', 'probe-entropy-256', 'probe-entropy-8192', 'probe-output_norm-8192',
                        'probe-a new <statistic>-8192', 'probe-induction_mass-8192', 'decade_mass-8192', 'cosine_mean-256', 'quantiles-8192', 'roles', 'roles-by-step', 'scalars', 'task-needle', 'task-copy', 'depth-needle']) {
      const figure = all('figure').find(f => f.dataset.chart === name);
      check(figure, 'no chart ' + name);
      if (!figure) continue;
      check(all('svg.chart path.line, svg.chart path.marker, svg.chart .item', figure).length > 0, name + ' is empty');
      check(all('svg.chart', figure).every(s => s.querySelector('title')?.textContent && s.querySelector('desc')?.textContent), name + ' has no title');
      check(all('details table tbody tr', figure).length > 0, name + ' has no data');
      check(all('[data-copy]', figure).length === 3, name + ' cannot be copied');
    }
    check(!all('figure').some(f => f.dataset.chart === 'depth-copy'), 'a heat map without depths');
    check(all('nav a').length === 12, all('nav a').length + ' entries in the contents');
    const ways = all('#two-ways tbody tr').map(row => all('td, th', row).slice(0, 2).map(c => c.textContent).join());
    check(ways.length === 8 && ways[0] === 'rope,windows' && ways[1] === 'rope,suffix', `scored in two ways: ${ways}`);
    check(document.getElementById('apart')?.textContent.includes('16,384 tokens of 3 documents'), 'nothing is shown apart');
    check(!all('.chip').some(c => c.textContent === 'rope + tried'), 'what is apart has a place in a legend');
    check((document.querySelector('[data-chart="validation-8192"] svg.wide path.line').getAttribute('d').match(/M/g) ?? []).length === 2, 'validations of other tokens are joined');
    for (const a of all('nav a')) check(document.getElementById(a.hash.slice(1)), 'no section ' + a.hash);
    check(all('h1').length === 1, 'not one h1');
    const main = document.querySelector('[data-chart="loss-by-length"]');
    const plain = main.querySelector('[data-view="plain"]');
    check(all('svg.wide g.series', plain).length === 6, 'series in the main chart');
    check(all('svg.wide .band', plain).length === 6, 'bands in the main chart');
    check(main.textContent.includes('rope + ntk'), 'no row for an evaluation');

    // Names are text, wherever they stand.
    check(window.broken === undefined, 'a name was executed');
    check(all('img').length === 0 && all('script').length === 2, 'a name became an element');
    check(document.querySelector('h1').textContent.includes("<\/script><script>window.broken = 1<\/script><img src='https"), 'the title was changed');
    check(all('tbody th').some(th => th.textContent === '<script>"\'&<img src=x onerror="window.broken=2">'), 'a variant was changed');

    // Ids are unique; a broken chart shows as NaN in its coordinates.
    const ids = all('[id]').map(e => e.id);
    check(new Set(ids).size === ids.length, 'ids repeat: ' + ids.filter((id, i) => ids.indexOf(id) !== i).slice(0, 3));
    for (const e of all('svg *'))
      for (const name of ['d', 'x', 'y', 'x1', 'y1', 'cx', 'cy', 'width', 'height'])
        if (/nan|inf/i.test(e.getAttribute(name) ?? '')) { check(false, 'no number in ' + e.outerHTML.slice(0, 80)); break; }

    // Layout: nothing sticks out of the page, only out of the boxes that scroll.
    for (const d of all('details')) d.open = true;
    check(document.documentElement.scrollWidth <= innerWidth, `scrolls sideways: ${document.documentElement.scrollWidth} of ${innerWidth}`);
    for (const e of all('main > section, p, figure, svg.chart, .legend, .menus, .scroll, h1, h2, h3, nav'))
      if (shown(e) && e.getBoundingClientRect().right > innerWidth + 0.5) check(false, 'sticks out: ' + e.outerHTML.slice(0, 80));
    checkTexts();
    checkTables();
    check(shown(main.querySelector('svg.narrow')) === narrow && shown(main.querySelector('svg.wide')) !== narrow, 'wrong size of chart');
    const chart = main.querySelector(narrow ? 'svg.narrow' : 'svg.wide');

    // Both colour schemes are there, with enough contrast.
    const luminance = colour => {
      const [r, g, b] = colour.match(/[\d.]+/g).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (a, b) => { const x = luminance(a), y = luminance(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
    const ground = getComputedStyle(document.documentElement).backgroundColor;
    check(luminance(ground) < 0.1 === dark, 'the ground is ' + ground);
    check(contrast(getComputedStyle(document.querySelector('p.lead')).color, ground) >= 7, 'contrast of text');
    check(contrast(getComputedStyle(document.querySelector('figcaption')).color, ground) >= 4.5, 'contrast of captions');
    const probe = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    main.querySelector('svg').append(probe);
    for (let c = 0; c < 8; ++c) {
      probe.setAttribute('class', `line c${c}`);
      const ratio = contrast(getComputedStyle(probe).stroke, ground);
      check(ratio >= 3, `contrast of colour ${c} is ${ratio.toFixed(2)}`);
    }
    probe.remove();

    // A click on a name hides its series everywhere, in heat maps too; "show all" brings it back.
    const chip = main.querySelector('[data-toggle="0"]');
    const parts = all('svg [data-g="0"], svg[data-g="0"]');
    check(parts.length > 10, 'few parts for the first series');
    chip.click();
    check(parts.every(e => e.classList.contains('hidden')), 'hiding leaves parts');
    check(all('[data-toggle="0"]').every(c => c.getAttribute('aria-pressed') === 'false'), 'legends do not agree');
    const back = main.querySelector('[data-all]');
    check(shown(back), 'no way back');
    back.click();
    check(all('svg .hidden, svg.hidden').length === 0, 'something stays hidden');
    check(!shown(back), 'show all stays');
    chip.dispatchEvent(new MouseEvent('click', { shiftKey: true, bubbles: true }));
    check(all('g.series', chart).filter(shown).length === 1, 'shift-click does not isolate');
    back.click();

    // Values by pointer and by keyboard.
    const tip = document.getElementById('tip');
    const box = chart.getBoundingClientRect();
    chart.dispatchEvent(new PointerEvent('pointermove', { clientX: box.right - box.width * 0.02, clientY: box.top + 50 }));
    check(shown(tip) && /^context 8,192/.test(tip.textContent) && all('.row', tip).length === 6, 'read-out: ' + tip.textContent);
    check(tip.getBoundingClientRect().right <= innerWidth, 'the read-out sticks out');
    chart.dispatchEvent(new PointerEvent('pointerleave'));
    check(!shown(tip), 'the read-out stays');
    chart.focus();
    check(document.activeElement === chart, 'charts cannot be focused');
    const key = name => chart.dispatchEvent(new KeyboardEvent('keydown', { key: name }));
    key('Home');
    check(/^context 256/.test(tip.textContent), 'Home: ' + tip.textContent);
    key('ArrowRight');
    check(/^context 512/.test(tip.textContent), 'arrow: ' + tip.textContent);
    key('Escape');
    check(!shown(tip), 'Escape');
    check(all('.cross, .spot').length === 0, 'marks of the read-out stay');

    // Views: one is shown at a time; minus the baseline, its own line is flat at zero.
    const views = () => all('[data-view]', main).filter(shown).map(v => v.dataset.view).join();
    check(views() === 'plain', 'first view ' + views());
    for (const name of ['log', 'difference']) {
        const button = main.querySelector(`[data-show="${name}"]`);
        button.click();
        check(views() === name && button.getAttribute('aria-pressed') === 'true', `view ${name}: ${views()}`);
        checkTexts();
    }
    const base = main.querySelector('[data-view="difference"] g.series[data-g="0"]');
    check(
        new Set(base.dataset.y.split('|')).size === 1 && base.dataset.v.startsWith('+0.0000|'),
        'the baseline minus itself: ' + base.dataset.v);
    main.querySelector('[data-show="plain"]').click();
    check(views() === 'plain', 'back to ' + views());

    // Menus.
    const menus = document.querySelector('[data-menus="diagnostics"]');
    const [statistic, length] = all('select', menus);
    const visible = () => all('[data-piece="diagnostics"]').filter(shown).map(p => p.dataset.key);
    check(visible().join() === 'entropy|8192', 'first choice ' + visible());
    for (const option of [...statistic.options]) {
      statistic.value = option.value;
      statistic.dispatchEvent(new Event('change'));
      check(visible().length === 1 && visible()[0] === option.value + '|8192', 'choice ' + option.value);
      check(all('[data-piece="diagnostics"] svg.panel').filter(shown).length > 0, 'no panels for ' + option.value);
    }
    length.value = '256';
    length.dispatchEvent(new Event('change'));
    check(visible()[0].endsWith('|256'), 'the length');
    const task = document.querySelector('[data-menus="tasks"] select');
    task.value = [...task.options].find(o => o.textContent === 'needle').value;
    task.dispatchEvent(new Event('change'));
    const heat = all('svg.heat').filter(shown);
    check(heat.length === 6 && all('.item', heat[0]).length === 30, `heat maps: ${heat.length}`);
    heat[0].focus();
    heat[0].dispatchEvent(new KeyboardEvent('keydown', { key: 'End' }));
    check(/depth 100%/.test(tip.textContent) && /margin/.test(tip.textContent), 'heat read-out: ' + tip.textContent);
    checkTexts();
    for (const svg of heat) check(svg.getBoundingClientRect().right <= innerWidth + 0.5, 'a heat map sticks out');
    check(document.documentElement.scrollWidth <= innerWidth, 'scrolls sideways after choosing');

    // Copying: full precision as CSV, what is shown as Markdown and as LaTeX.
    const buttons = all('[data-copy]', main);
    buttons[0].click();
    await pause();
    let lines = copied.trim().split('\n');
    check(lines.length === 7, 'CSV lines ' + lines.length);
    check(lines[0] === 'variant,seeds,256,256 standard error,512,512 standard error,"1,024","1,024 standard error","2,048","2,048 standard error","4,096","4,096 standard error","8,192","8,192 standard error"', 'CSV header ' + lines[0]);
    check(/^rope,3,0\.\d{10,},0\.00\d{8,},/.test(lines[1]), 'CSV row ' + lines[1]);
    check(lines[6].startsWith('"<script>""\'&<img src=x onerror=""window.broken=2"">",3,'), 'CSV quoting ' + lines[6]);
    check(lines.every(l => l.replace(/"(?:[^"]|"")*"/g, 'q').split(',').length === 14), 'CSV columns');
    check(buttons[0].textContent === 'Copied', 'no answer to copying');
    buttons[1].click();
    await pause();
    lines = copied.trim().split('\n');
    check(lines.length === 8 && /^\| variant \| seeds \| 256 \|/.test(lines[0]) && /^\| --- \| ---: \|/.test(lines[1]), 'Markdown ' + lines.slice(0, 2));
    check(/^\| rope \| 3 \| 0\.\d{4} ± 0\.\d{4} \|/.test(lines[2]), 'Markdown row ' + lines[2]);
    buttons[2].click();
    await pause();
    check(copied.startsWith('\\begin{table}\n') && copied.includes('\\label{tab:loss-by-length}') && copied.includes('\n    rope & 3 & ') && copied.includes(' $\\pm$ 0.'), 'LaTeX ' + copied);
    check(all('.table').every(t => t.querySelector('pre').textContent.split('\\\\').length === t.querySelectorAll('tr').length + 1), 'rows are missing in LaTeX');
    for (const [button, start] of all('#methods [data-copy]').filter(b => b.dataset.copy === 'text').map((b, i) => [b, ['The models are ', '@misc{'][i]])) {
        button.click();
        await pause();
        check(copied.startsWith(start), `${button.textContent}: ${copied.slice(0, 40)}`);
    }

    // The policy of the page refuses any other script.
    refusal = true;
    const script = document.createElement('script');
    script.textContent = 'window.pwned = 1';
    document.body.append(script);
    const handler = document.createElement('b');
    handler.setAttribute('onclick', 'window.pwned = 1');
    document.body.append(handler);
    handler.click();
    await pause();
    check(window.pwned === undefined && refused >= 2, `the policy let a script pass (${refused} refused)`);

    check(performance.getEntriesByType('resource').length === 0, 'loaded something');
  }
  addEventListener('load', () => run().catch(e => failures.push('stopped: ' + e.stack)).finally(() => {
    parent.postMessage({ frame: location.hash, failures }, '*');
  }));
})();
