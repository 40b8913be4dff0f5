/* GPU Yard: what pages gain from JavaScript. Every page can be read, and every form sent, without it. */
(() => {
  "use strict";
  const root = document.documentElement, key = "yard-theme";
  root.classList.add("js");

  // ── theme: the system decides (light-dark() in yard.css) until somebody chooses
  const stored = (() => { try { return localStorage.getItem(key); } catch { return null; } })();
  if (stored === "light" || stored === "dark") root.dataset.bsTheme = stored;
  const isDark = () => root.dataset.bsTheme ? root.dataset.bsTheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  function toggleTheme() {
    root.dataset.bsTheme = isDark() ? "light" : "dark";
    try { localStorage.setItem(key, root.dataset.bsTheme); } catch { /* private mode: lasts for this page */ }
    document.dispatchEvent(new CustomEvent("yard:theme"));
  }

  // ── toasts and dialogs
  function toast(text) {
    const box = document.createElement("div");
    box.className = "toast-y";
    box.textContent = text;
    document.querySelector("[data-toasts]")?.append(box);
    setTimeout(() => box.remove(), 4000);
  }
  function openDialog(id) {
    const dialog = document.getElementById(id);
    if (!(dialog instanceof HTMLDialogElement)) return false;
    dialog.close(); // one rendered open by the server is not modal yet
    dialog.showModal();
    return true;
  }
  async function copy(text) {
    try { await navigator.clipboard.writeText(text); toast(`Copied ${text}`); } catch { toast(`Copy it by hand: ${text}`); }
  }

  document.addEventListener("click", (event) => {
    const at = event.target instanceof Element ? event.target : null;
    if (!at) return;
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(at)) menu.open = false;
    if (at.closest("[data-theme-toggle]")) return toggleTheme();
    if (at.closest("[data-close]")) return at.closest(".toast-y")?.remove();
    const copied = at.closest("[data-copy]");
    if (copied) return void copy(copied.dataset.copy);
    const opener = at.closest("[data-dialog]");
    if (opener && openDialog(opener.dataset.dialog)) return event.preventDefault();
    const closer = at.closest("[data-close-dialog]");
    if (closer) { event.preventDefault(); return closer.closest("dialog")?.close(); }
    if (at instanceof HTMLDialogElement) at.close(); // a press on the backdrop
  });
  document.addEventListener("change", (event) => {
    if (event.target instanceof Element && event.target.matches("[data-autosubmit]")) event.target.form?.requestSubmit();
  });

  // ── keyboard
  let goPressed = 0;
  const typing = (at) => at instanceof Element && at.closest("input, textarea, select, [contenteditable]") && !at.matches("[type=radio], [type=checkbox]");
  function go(selector) {
    const link = document.querySelector(selector);
    if (!link) return false;
    link.click();
    return true;
  }
  function step(by) {
    const links = [...document.querySelectorAll("[data-inbox]")], now = links.findIndex((link) => link.hasAttribute("aria-current"));
    const next = links[Math.min(links.length - 1, Math.max(0, now + by))];
    if (!next || links.indexOf(next) === now) return false;
    next.click();
    return true;
  }
  // Deciding by a key asks once more: the first press focuses the button, Enter does it.
  function arm(letter) {
    const button = document.querySelector(`[data-key="${CSS.escape(letter)}"]`);
    if (!button) return false;
    const needed = button.dataset.needs ? document.getElementById(button.dataset.needs) : null;
    (needed && !needed.value.trim() ? needed : button).focus();
    return true;
  }
  function pressed(letter) {
    if (Date.now() - goPressed < 1500) { goPressed = 0; if (/^[a-z]$/.test(letter) && go(`[data-go="${letter}"]`)) return true; }
    if (letter === "/") { const box = document.querySelector(".search-f input, [data-search]"); box?.focus(); box?.select(); return Boolean(box); }
    if (letter === "g") { goPressed = Date.now(); return true; }
    if (letter === "c") return go("[data-go-request]");
    if (letter === "?") return openDialog("help");
    if (letter === "j") return step(1);
    if (letter === "k") return step(-1);
    if (letter === "a" || letter === "r") return arm(letter);
    return false;
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      for (const menu of document.querySelectorAll("details.menu[open]")) { menu.open = false; menu.querySelector("summary")?.focus(); }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || typing(event.target) || document.querySelector("dialog:modal")) return;
    if (pressed(event.key)) event.preventDefault();
  });

  // ── live parts: stamps, stale marks, glow, a log that follows
  const heard = new WeakMap();
  const atEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 32;
  const follow = (log) => { log.scrollTop = log.scrollHeight; };
  let following = new Set();

  function stamp(part, headers) {
    heard.set(part, Date.now());
    part.classList.remove("is-stale");
    const clock = headers?.get("Yard-As-Of");
    // Only a 204 needs this: after a swap the server's own stamp is in the page.
    if (clock) for (const time of part.querySelectorAll("[data-asof] time")) time.textContent = time.textContent.replace(/\d\d:\d\d:\d\d$/, clock);
  }
  document.addEventListener("htmx:after:request", (event) => {
    const context = event.detail?.ctx, part = context?.sourceElement?.closest?.("[data-live]");
    if (part && context.response?.status < 400) stamp(part, context.response.headers);
  });
  document.addEventListener("htmx:before:swap", () => {
    following = new Set([...document.querySelectorAll("[data-follow]")].filter(atEnd).map((log) => log.id));
  });
  document.addEventListener("htmx:after:swap", () => {
    for (const log of document.querySelectorAll("[data-follow]")) if (following.has(log.id)) follow(log);
  });
  setInterval(() => {
    for (const part of document.querySelectorAll("[data-live]")) {
      const limit = 3000 * Number(part.dataset.live) + 2000;
      if (!document.hidden && Date.now() - (heard.get(part) ?? performance.timeOrigin) > limit) part.classList.add("is-stale");
    }
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    // Timers sleep in a hidden tab; give each part one full turn before calling it stale.
    if (!document.hidden) for (const part of document.querySelectorAll("[data-live]")) heard.set(part, Date.now());
  });

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-follow]").forEach(follow);
    const here = document.querySelector(".nav-y [aria-current]");
    if (here) here.parentElement.scrollLeft = here.offsetLeft - 60;
    document.querySelectorAll(".toasts .toast-y:not(.t-error)").forEach((box) => setTimeout(() => box.remove(), 8000));
    const asked = document.querySelector("dialog[open]");
    if (asked) openDialog(asked.id);
    window.htmx?.registerExtension("yard", {
      htmx_before_morph_attr: (element, detail) => {
        if (detail.attrName === "open") return false; // what the reader opened stays open
        if (detail.attrName === "data-glow") {
          element.classList.remove("glow");
          void element.offsetWidth; // restarts the animation
          element.classList.add("glow");
        }
        return !(detail.attrName === "class" && element.classList.contains("glow"));
      },
    });
  });
})();
