// From logits to the drawn token: what the model thought, what temperature and cuts made of it, what was drawn.

function drawLogits(place, note, run, step, life) {
  const ids = Object.keys(step?.draws ?? {});
  const id = ids.includes(life?.key) ? life.key : ids[0];
  place.nextElementSibling.hidden = id === undefined;
  if (id === undefined) {
    place.replaceChildren();
    const token = step?.tokens.find(([index]) => index === life?.index);
    const logprob = token ? run.lives[token[0]].logprobs[token[2]] : null;
    note.textContent = logprob === null || logprob === undefined ? "No token was drawn in this step, or the trace does not hold its candidates."
      : `The trace holds no candidates. The token \u201c${run.word(token[1])}\u201d had a probability of ${three(100 * Math.exp(logprob))} %.`;
    return;
  }
  const draw = step.draws[id];
  const cut = [draw.temperature === 0 ? "greedy: the likeliest token is taken" : `temperature ${draw.temperature}`,
    draw.top_k > 0 && draw.temperature ? `top-k ${draw.top_k}` : null, draw.top_p < 1 && draw.temperature ? `top-p ${draw.top_p}` : null].filter(Boolean).join(", ");
  const chosen = draw.top.find(([token]) => token === draw.drawn);
  note.textContent = `${run.known.get(id).id}, ${cut}. The model gave \u201c${run.word(draw.drawn)}\u201d ${three(100 * chosen[1])} % (place ${draw.rank}). `
    + (draw.temperature === 0 ? "" : `${count(draw.kept, "token")} were left to draw from; there it had ${three(100 * chosen[2])} %.`);
  const most = Math.max(...draw.top.map(([, model, after]) => Math.max(model, draw.temperature ? after : 0)));
  place.replaceChildren(...draw.top.map(([token, model, after]) => {
    const before = el("span", { class: "bar model" });
    const kept = el("span", { class: "bar after" });
    before.style.width = `${100 * model / most}%`;
    kept.style.width = draw.temperature ? `${100 * after / most}%` : "0";
    return el("li", { class: `${token === draw.drawn ? "drawn" : ""} ${after === 0 && token !== draw.drawn ? "cut" : ""}` },
      el("bdi", { class: "token" }, run.word(token)), el("span", { class: "bars" }, before, kept),
      el("span", { class: "share" }, model < 0.0001 ? "< 0.01 %" : `${three(100 * model)} %`),
      el("span", { class: "sr" }, token === draw.drawn ? " drawn" : after === 0 ? " cut" : ` then ${three(100 * after)} %`));
  }));
}
