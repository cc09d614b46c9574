// A dialog that says what an action is about to do before it does it.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { canChange, tell } from "../api.js";

const open = signal(null);

/**
 * Ask before an action. `plan` is a text, or loads one, as {text, isNothing} if there may be nothing to do; `run` does it; `done` says what happened.
 * @param {{title: string, plan: string|(() => Promise<string|{text: string, isNothing: boolean}>), confirm: string, hasReason?: boolean,
 *   run: (reason: string) => Promise<unknown>, done?: (answer: unknown) => string|void}} action
 */
export const ask = (action) => (open.value = action);

/** A button that opens the dialog; absent where nothing may be changed. */
export function Action({ label = null, action, isDanger, isSmall, disabled }) {
  if (!canChange()) return null;
  return (
    <button type="button" class={`${isDanger ? "danger" : ""} ${isSmall ? "small" : ""}`} disabled={disabled}
      onClick={() => ask(action)} aria-haspopup="dialog">
      {label ?? action.confirm}
    </button>
  );
}

export function Dialog() {
  return open.value && <Question key={open.value} action={open.value} />;
}

function Question({ action }) {
  const element = useRef();
  const [plan, setPlan] = useState(typeof action.plan === "string" ? action.plan : null);
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [isNothing, setNothing] = useState(false);
  const [reason, setReason] = useState("");
  const close = () => element.current?.close();
  useEffect(() => {
    element.current.showModal();
    if (typeof action.plan !== "string") {
      action.plan().then((found) => {
        setPlan(found.text ?? found);
        setNothing(found.isNothing === true);
      }, setProblem);
    }
  }, []);
  const run = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const answer = await action.run(reason);
      tell(action.done?.(answer) || `${action.title}: done.`);
      close();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return (
    <dialog ref={element} aria-labelledby="dialog-title" onClose={() => (open.value = null)}>
      <form onSubmit={run}>
        <h2 id="dialog-title">{action.title}</h2>
        <p class="plan" aria-live="polite">{plan ?? (problem ? "" : "Loading what it is about to do…")}</p>
        {action.hasReason && (
          <label>
            Reason (optional)
            <input value={reason} onInput={(event) => setReason(event.target.value)} maxLength="500" />
          </label>
        )}
        {problem && <p class="problem" role="alert">{problem.message} {problem.fix}</p>}
        <p class="buttons">
          {!isNothing && (
            <button type="submit" class={action.isDanger ? "danger main" : "main"} disabled={isBusy || plan === null}>
              {action.confirm}
            </button>
          )}
          <button type="button" onClick={close}>{isNothing ? "Close" : "Close without changes"}</button>
        </p>
      </form>
    </dialog>
  );
}
