// The hash of the address is the view, and what the service is asked has an address of its own.
const decode = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

/** The view that a hash means: #/flows/ID/nodes/NAME?state=failed. */
export function viewOf(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts: parts.length ? parts : ["flows"], params: Object.fromEntries(new URLSearchParams(query)) };
}

// A browser leaves out the parts . and .. of an address, so they come after a byte that no text has.
const part = (text) => (/^\.\.?$/.test(text) ? `%FF${text}` : encodeURIComponent(text));

/** A relative URL of the service; every part may contain any characters. */
export function url(parts, params = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value !== "" && value !== null && value !== undefined) query.set(key, value);
  }
  const text = query.toString();
  return `api/${parts.map(part).join("/")}${text ? `?${text}` : ""}`;
}

export const OPTIONS = { credentials: "same-origin", cache: "no-store" };
