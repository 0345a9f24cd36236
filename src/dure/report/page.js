// Values under the pointer (or the arrow keys) on each chart. The page is complete without it.
const units = [["PB", 1e15], ["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];
const show = {
  bytes: v => { const [u, s] = units.find(([, s]) => v >= s) || units.at(-1); return +(v / s).toPrecision(4) + " " + u; },
  percent: v => (100 * v).toFixed(2) + " %",
  count: v => v.toLocaleString("en"),
  number: v => Math.abs(v) >= 1e-4 && Math.abs(v) < 1e9 ? (+v.toPrecision(4)).toLocaleString("en", {maximumSignificantDigits: 4}) : v.toExponential(2),
};
for (const plot of document.querySelectorAll(".plot[data-points]")) {
  const data = JSON.parse(plot.dataset.points), [xKind, yKind] = data.kind;
  let at = -1;
  const clear = () => plot.querySelectorAll(".hair, .dot, .tip").forEach(e => e.remove());
  const add = (kind, style) => { const e = document.createElement("div"); e.className = kind; Object.assign(e.style, style); plot.append(e); return e; };
  const point = x => {
    clear();
    const tip = add("tip", {}), places = [];
    let seen = null;
    data.x.forEach((xs, k) => {
      let best = -1;
      xs.forEach((v, i) => { if (data.y[k][i] !== null && (best < 0 || Math.abs(v - x) < Math.abs(xs[best] - x))) best = i; });
      if (best < 0) return;
      if (seen === null || Math.abs(xs[best] - x) < Math.abs(seen[0] - x)) seen = [xs[best], data.xv[k][best]];
      places.push([xs[best], data.top[k][best], data.tone[k], data.label[k], data.y[k][best]]);
    });
    if (!seen) return;
    const head = document.createElement("b");
    head.textContent = xKind === "bytes" ? show.bytes(seen[1]) + " up" : data.name + " " + show[xKind](seen[1]);
    tip.append(head);
    for (const [left, top, tone, label, value] of places) {
      add("dot", {left: left + "%", top: top + "%", background: tone});
      const row = document.createElement("div"), spot = document.createElement("i");
      spot.style.background = tone;
      row.append(spot, label + "  " + show[yKind](value));
      tip.append(row);
    }
    add("hair", {left: seen[0] + "%"});
    // Beside the line, on the side with room, and never out of the chart.
    const wide = plot.clientWidth, at = wide * seen[0] / 100, side = seen[0] > 55 ? at - tip.offsetWidth - 12 : at + 12;
    Object.assign(tip.style, {top: "6px", left: Math.max(0, Math.min(side, wide - tip.offsetWidth)) + "px"});
  };
  plot.addEventListener("pointermove", e => { const box = plot.getBoundingClientRect(); point(100 * (e.clientX - box.left) / box.width); });
  plot.addEventListener("pointerleave", clear);
  plot.addEventListener("blur", clear);
  plot.addEventListener("keydown", e => {
    const xs = data.x[0], step = {ArrowRight: 1, ArrowLeft: -1}[e.key];
    if (!step || !xs.length) return;
    at = Math.min(xs.length - 1, Math.max(0, at < 0 ? (step > 0 ? 0 : xs.length - 1) : at + step));
    point(xs[at]); e.preventDefault();
  });
}
