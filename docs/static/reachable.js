// What Sphinx and furo leave unsaid to those who use a keyboard or a screen reader.
addEventListener("DOMContentLoaded", () => {
  const say = (found, name, value) => document.querySelectorAll(found).forEach((it) => it.setAttribute(name, value));
  say('.caption[role="heading"]', "aria-level", "2");
  say(".sidebar-drawer", "aria-label", "Pages");
  say(".toc-drawer", "aria-label", "On this page");
  const reach = () =>
    document.querySelectorAll("pre, .highlight, .table-wrapper").forEach((it) => {
      if (it.scrollWidth > it.clientWidth) it.tabIndex = 0;
      else it.removeAttribute("tabindex");
    });
  reach();
  addEventListener("resize", reach);
});
