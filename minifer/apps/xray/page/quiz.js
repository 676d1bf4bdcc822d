// Predict first: questions whose answers are in the trace. Nothing is stored, nothing is sent.

/** Up to four options with the right one among them, in the order of their size. */
function numberOptions(right, others, say) {
  const values = [...new Set([right, ...others.filter((value) => value > 0)])].slice(0, 4).sort((a, b) => a - b);
  return values.map((value) => ({ text: say(value), right: value === right }));
}

function quizOf(run, blocks, ceilings) {
  if (!run.steps.length) return [];
  const told = stories(run, blocks, ceilings);
  return [slowestStep(run), secondWait(run, told[1]), promptBlocks(run, told[2]), speedUp(run, told[0]),
    decodeLimit(run, ceilings, told[4])].filter((question) => question && question.options.length > 1);
}

function slowestStep(run) {
  const by = [...run.steps].sort((a, b) => b.ms - a.ms);
  const slow = by[0];
  const say = (index) => `step ${index + 1}, ${run.steps[index].prefillTokens ? "with a prompt to compute"
    : `decode of ${count(run.steps[index].decodes, "answer")}`}`;
  const middle = run.steps[run.steps.length >> 1].index;
  const others = [run.steps.at(-1).index, middle, run.steps[0].index, run.steps[Math.min(1, run.steps.length - 1)].index];
  const options = [...new Set([slow.index, ...others])].slice(0, 4).sort((a, b) => a - b)
    .map((index) => ({ text: say(index), right: index === slow.index }));
  return {
    question: "Which of these steps was the slowest?", options, step: slow.index, pane: "h-time",
    answer: `Step ${slow.index + 1} took ${duration(slow.ms)} and fed ${count(slow.fed, "token")} in; the median step took ${duration(median(run.steps.map((s) => s.ms)))}.`,
  };
}

function secondWait(run, story) {
  if (!run.lives[1] || run.queue(run.lives[1]) === null) return null;
  const kind = waitKind(run, run.lives[1]);
  const texts = {
    seat: "a free seat in the batch", blocks: "free blocks in the KV cache", batch: "the whole batch before it to end",
    budget: "room in a step: too many tokens at once", step: "the step under way to end", nothing: "nothing: it was let in at once",
  };
  const options = Object.entries(texts).filter(([name]) => name !== "budget" || kind === "budget")
    .map(([name, text]) => ({ text, right: name === kind }));
  return { ...story, question: `What did ${run.lives[1].id} wait for before it was started?`, options };
}

function promptBlocks(run, story) {
  const life = run.lives.find((one) => one.times.length > 1) ?? run.lives[0];
  const right = Math.ceil(life.prompt.length / run.blockSize);
  if (!right) return null;
  return {
    ...story,
    question: `${life.id} has a prompt of ${count(life.prompt.length, "token")}, and a block holds ${run.blockSize}. How many blocks does the prompt need?`,
    options: numberOptions(right, [right - 1, right + 1, life.prompt.length, 1], (n) => count(n, "block")),
  };
}

function speedUp(run, story) {
  const life = run.lives.find((one) => one.times.length > 1);
  if (!life) return null;
  const ratio = (life.times[0] - life.scheduled) / (life.times[1] - life.times[0]);
  const kinds = [["slower, or about the same", ratio < 1.15], ["up to twice as fast", ratio >= 1.15 && ratio < 2],
    ["two to five times as fast", ratio >= 2 && ratio < 5], ["more than five times as fast", ratio >= 5]];
  return {
    ...story,
    question: `${life.id} had to compute ${count(life.prompt.length, "prompt token")} for its first token, and one for its second. How much faster did the second come?`,
    options: kinds.map(([text, right]) => ({ text, right })),
  };
}

function decodeLimit(run, ceilings, story) {
  const steps = phases(run).decode;
  if (!ceilings || !steps.length || !steps[0].ops) return null;
  const { kind } = limitOf(steps, ceilings);
  const texts = { reading: "reading memory", arithmetic: "arithmetic", overhead: "overhead: calls rather than work" };
  return {
    ...story,
    question: "What limited the decode steps?",
    options: Object.entries(texts).map(([name, text]) => ({ text, right: name === kind })),
  };
}

/** Draw the questions; an answer, with where to look, shows only after a guess. */
function drawQuiz(place, questions, lookAt) {
  let right = 0;
  let asked = 0;
  const score = el("p", { class: "lead", role: "status" });
  place.replaceChildren(score, ...questions.map((question, number) => {
    const reply = el("div", { class: "reply", role: "status" });
    const options = question.options.map((option, i) => el("label", { class: "option" },
      el("input", { type: "radio", name: `quiz${number}`, value: i, onchange: () => settle(option) }), ` ${option.text}`));
    const field = el("fieldset", {}, el("legend", {}, `${number + 1}. ${question.question}`), ...options, reply);
    function settle(chosen) {
      asked += 1;
      right += chosen.right ? 1 : 0;
      options.forEach((label, i) => {
        label.firstChild.disabled = true;
        label.classList.toggle("right", question.options[i].right);
        label.classList.toggle("wrong", !question.options[i].right && question.options[i] === chosen);
      });
      const truth = question.options.find((option) => option.right);
      reply.replaceChildren(
        el("strong", {}, chosen.right ? "Right. " : `Not in this run: ${truth ? truth.text : "none of these"}. `),
        [question.answer, question.more].filter(Boolean).join(" "), " ",
        question.step === undefined ? "" : el("button", { type: "button", onclick: () => lookAt(question) },
          `Show step ${question.step + 1}`));
      score.textContent = `${right} of ${asked} right so far.`;
    }
    return field;
  }));
}
