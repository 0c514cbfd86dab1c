// Runs inside a report of hostile files, before its own script: nothing from a file became markup or ran, and the page
// asked its policy for nothing.
'use strict';
(() => {
  const failures = [];
  const check = (ok, what) => { if (!ok) failures.push(what); };
  addEventListener('error', e => failures.push('error: ' + (e.message || e.target?.src)), true);
  addEventListener('securitypolicyviolation', e => failures.push('policy violation: ' + e.blockedURI + ' ' + e.violatedDirective));
  const all = selector => [...document.querySelectorAll(selector)];
  addEventListener('load', async () => {
    for (const d of all('details')) d.open = true;
    for (const select of all('select'))
      for (const option of [...select.options]) {
        select.value = option.value;
        select.dispatchEvent(new Event('change'));
      }
    for (const e of all('.chip, svg.chart, [data-copy]').slice(0, 40)) {
      e.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
      e.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: 100, clientY: 100 }));
    }
    await new Promise(done => setTimeout(done, 100));
    check(window.pwned === undefined, 'a text of a file ran as a script');
    check(all('script').length === 2, all('script').length + ' scripts');
    check(all('img, iframe, object, embed, animate, form, base').length === 0, 'a text became an element');
    for (const e of all('*')) {
      for (const { name, value } of e.attributes) {
        check(!name.startsWith('on'), 'a handler: ' + name);
        if (name === 'id') check(/^[A-Za-z0-9_.-]+$/.test(value), 'an id: ' + value);
        if (name === 'href') check(/^#[a-z-]+$/.test(value) || value === 'data:,', 'a link: ' + value);
      }
    }
    check(all('nav a').length > 4, 'the page is empty');
    check(document.documentElement.scrollWidth <= innerWidth, `scrolls sideways: ${document.documentElement.scrollWidth} of ${innerWidth}`);
    parent.postMessage({ frame: location.hash, failures }, '*');
  });
})();
