"use strict";
(() => {
  const form = document.getElementById("filters");
  const cases = [...document.querySelectorAll("details.case")];
  const shown = form.querySelector("output");
  let group = "";

  const draw = (details) => {
    for (const place of details.querySelectorAll("[data-drawing]")) {
      const drawing = document.getElementById(place.dataset.drawing);
      if (drawing && !place.firstElementChild) place.append(drawing.content.cloneNode(true));
    }
  };
  for (const one of cases) {
    if (one.open) draw(one);
    one.addEventListener("toggle", () => one.open && draw(one));
  }

  const apply = () => {
    const want = Object.fromEntries(new FormData(form));
    const words = want.text.toLowerCase().split(/\s+/).filter(Boolean);
    let number = 0;
    for (const one of cases) {
      const has = one.dataset;
      const name = has.name.toLowerCase();
      const fits = (!group || has.group === group)
        && (!want.model || has.model === want.model)
        && (!want.path || has.path === want.path)
        && (!want.verdict || has.verdict === want.verdict)
        && (!want.check || has.checks.split(" ").includes(want.check))
        && words.every((word) => name.includes(word));
      one.hidden = !fits;
      number += fits;
    }
    shown.textContent = `${number} of ${cases.length} cases`;
  };
  const reset = () => { group = ""; form.reset(); };
  form.hidden = false;
  form.addEventListener("input", () => { group = ""; apply(); });
  form.addEventListener("reset", () => { group = ""; setTimeout(apply); });
  form.addEventListener("submit", (event) => event.preventDefault());

  for (const cell of document.querySelectorAll("a[data-group]")) {
    cell.addEventListener("click", () => {
      form.reset();
      group = cell.dataset.group;
      const found = cases.filter((one) => one.dataset.group === group);
      const hit = found.some((one) => one.dataset.checks.split(" ").includes(cell.dataset.check));
      form.elements.model.value = found.length ? found[0].dataset.model : "";
      form.elements.path.value = found.length ? found[0].dataset.path : "";
      form.elements.check.value = hit ? cell.dataset.check : "";
      setTimeout(apply);
    });
  }

  const follow = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target || !target.classList.contains("case")) return;
    if (target.hidden) { reset(); apply(); }
    target.open = true;
    draw(target);
    target.scrollIntoView();
    target.querySelector("summary").focus({ preventScroll: true });
  };
  addEventListener("hashchange", follow);
  for (const link of document.querySelectorAll('a[href^="#case-"]')) link.addEventListener("click", () => setTimeout(follow));

  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element && event.target.matches("input, select");
    if (event.key === "/" && !typing) { event.preventDefault(); form.elements.text.focus(); }
    if (event.key === "Escape") { reset(); setTimeout(apply); }
  });

  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();
  apply();
  follow();
})();
