//! A browser that shows the page of a report, and what a reader would miss. Only `make nightly`
//! starts one.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{is_nightly, say, test_name};

/// A browser that has not ended by then never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// The browser that is installed.
pub struct Browser(&'static str);

/// What a reader prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Dark letters on light paper.
    Light,
    /// Light letters on dark paper.
    Dark,
}

impl Browser {
    /// The browser to use. Without one, or outside `make nightly`, it prints a note.
    pub fn find() -> Option<Browser> {
        if !is_nightly() {
            say(&format!("NIGHTLY: {}: a browser draws reports", test_name()));
            return None;
        }
        let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
            let version = Command::new(name).arg("--version").stdout(Stdio::null()).status();
            !matches!(version, Err(error) if error.kind() == ErrorKind::NotFound)
        });
        if found.is_none() {
            say("SKIPPED: no browser for the page: install chromium");
        }
        found.map(Browser)
    }

    /// What is wrong with a page in a window of a width, in pixels, with everything unfolded: an
    /// object with `dark`, `missing`, `hidden`, `overflow` and `faint`.
    ///
    /// # Errors
    /// What the browser complains of.
    ///
    /// # Panics
    /// The browser does not work.
    pub fn look(&self, page: &str, width: u32, scheme: Scheme) -> Result<Value, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("probe.html");
        let page = page.replace('&', "&amp;").replace('"', "&quot;");
        let probe = PROBE.replace("WIDTH", &width.to_string()).replace("PAGE", &page);
        fs::write(&file, probe).expect("it has room");
        // Its numbers of the two schemes.
        let preferred = match scheme {
            Scheme::Dark => 0,
            Scheme::Light => 1,
        };
        let preferred = format!("--blink-settings=preferredColorScheme={preferred}");
        let words = ["--enable-logging=stderr", "--dump-dom", preferred.as_str()];
        let (dom, log) = self.run(&words, &file);
        let complaints: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
        if !complaints.is_empty() {
            return Err(complaints.join("\n"));
        }
        let found = dom.split("<pre id=\"found\">").nth(1);
        let found = found.and_then(|rest| rest.split("</pre>").next());
        let found = found.and_then(|found| serde_json::from_str(found).ok());
        found.ok_or_else(|| format!("no page: {log}"))
    }

    /// Prints a page to a PDF file.
    ///
    /// # Panics
    /// The browser does not work.
    pub fn print(&self, page: &Path, pdf: &Path) {
        let to = format!("--print-to-pdf={}", pdf.display());
        self.run(&["--no-pdf-header-footer", &to], page);
    }

    /// What it prints on its two outputs.
    fn run(&self, words: &[&str], page: &Path) -> (String, String) {
        let profile = tempfile::tempdir().expect("a directory");
        let out = |name: &str| File::create(profile.path().join(name)).expect("it has room");
        let mut child = Command::new(self.0)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .arg("--disable-component-update")
            .args(words)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("--window-size=1300,900")
            .arg(format!("file://{}", page.display()))
            .stdin(Stdio::null())
            .stdout(out("dom"))
            .stderr(out("log"))
            .spawn()
            .expect("it was there a moment ago");
        let start = Instant::now();
        while child.try_wait().expect("it is ours").is_none() {
            if start.elapsed() > PATIENCE {
                child.kill().expect("it is ours");
                child.wait().expect("it is ours");
                panic!("the browser does not end");
            }
            // waits: looks again until the browser ends
            std::thread::sleep(Duration::from_millis(50));
        }
        let read = |name| {
            let bytes = fs::read(profile.path().join(name)).expect("the file is open for it");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        (read("dom"), read("log"))
    }
}

/// A page in a frame, because browser windows cannot be as narrow as a phone's. It says whether the
/// page is dark, how many images and figures are not shown, by how many pixels the page is wider
/// than the frame, and which texts have less contrast to their paper than 4.5 to 1, what WCAG 2.1
/// (1.4.3) demands of small ones. A drawing's paper is its first rectangle.
const PROBE: &str = r#"<!DOCTYPE html><pre id="found"></pre>
<iframe style="width: WIDTHpx; height: 4000px; border: 0" srcdoc="PAGE"></iframe><script>
  const parts = colour => {
    const [red, green, blue, alpha = 1] = colour.match(/[\d.]+/g).map(Number);
    return { rgb: [red, green, blue], alpha };
  };
  const over = ({ rgb, alpha }, below) =>
    rgb.map((one, at) => one * alpha + below[at] * (1 - alpha));
  const luminance = rgb => {
    const linear = one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
    const [red, green, blue] = rgb.map(one => linear(one / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  addEventListener("load", () => {
    const frame = document.querySelector("iframe");
    const page = frame.contentDocument;
    const style = element => frame.contentWindow.getComputedStyle(element);
    page.querySelectorAll("details").forEach(one => one.open = true);
    const paper = element => {
      const drawing = element.closest("svg");
      if (drawing) return parts(style(drawing.querySelector("rect")).fill).rgb;
      const own = parts(style(element).backgroundColor);
      if (own.alpha === 1) return own.rgb;
      return over(own, element.parentElement ? paper(element.parentElement) : [255, 255, 255]);
    };
    const faint = new Set();
    const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const element = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
      if (!text || element.closest("title, desc, style, script")) continue;
      const ink = style(element)[element.closest("svg") ? "fill" : "color"];
      const below = paper(element), ratio = contrast(over(parts(ink), below), below);
      if (ratio < 4.5) faint.add(`${ratio.toFixed(1)} ${text.slice(0, 40)}`.replace(/[&<>]/g, " "));
    }
    const is_seen = svg => svg.getBoundingClientRect().height > 100;
    const figures = [...page.querySelectorAll("figure")];
    document.getElementById("found").textContent = JSON.stringify({
      dark: frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches,
      missing: [...page.images].filter(image => image.naturalWidth === 0).length,
      hidden: figures.filter(one => ![...one.querySelectorAll("svg")].some(is_seen)).length,
      overflow: Math.max(0, page.documentElement.scrollWidth - WIDTH),
      faint: [...faint],
    });
  });
</script>"#;
