// Runs inside a report that is watched, before its own script: what a reader has chosen survives loading the page again.
'use strict';
(() => {
  const failures = [];
  const check = (ok, what) => { if (!ok) failures.push(what); };
  addEventListener('error', e => failures.push('error: ' + (e.message || e.target?.src)), true);
  addEventListener('securitypolicyviolation', e => failures.push('policy violation: ' + e.violatedDirective));
  const all = selector => [...document.querySelectorAll(selector)];
  const menu = () => document.querySelector('[data-menus] select');
  const first = window.name !== 'again';
  window.name = 'again';  // is kept when the page is loaded again
  const later = setTimeout;
  if (!first) window.setTimeout = (work, delay) => delay < 1000 && later(work, delay);  // once is enough
  addEventListener('load', () => later(() => {
    if (first) {
      all('details')[1].open = true;
      document.querySelector('[data-toggle="1"]').click();
      document.querySelector('[data-show="difference"]').click();
      menu().value = menu().options[0].value;
      menu().dispatchEvent(new Event('change'));
      scrollTo({ top: 1234, behavior: 'instant' });
      return;
    }
    check(Math.abs(scrollY - 1234) < 2, 'the place is ' + scrollY);
    check(all('details')[1].open && !all('details')[0].open, 'other tables are open');
    check(all('[data-toggle="1"]').every(c => c.getAttribute('aria-pressed') === 'false'), 'a hidden series is back');
    check(all('[data-toggle="0"]').every(c => c.getAttribute('aria-pressed') === 'true'), 'another series is hidden');
    check(document.querySelector('[data-show="difference"]').getAttribute('aria-pressed') === 'true', 'the view is another');
    check(menu().selectedIndex === 0, 'the menu shows ' + menu().value);
    parent.postMessage({ frame: location.hash, failures }, '*');
  }, 50));
})();
