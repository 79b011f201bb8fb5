package testenv

import (
	"os/exec"
	"testing"
)

const howToGetChromium = "install Chromium (Debian: chromium; Fedora: chromium; macOS: brew install chromium) or " +
	"Google Chrome, so that chromium, chromium-browser or google-chrome is in the PATH"

// Chromium returns the path of a browser for tests of pages. It installs one if there is none.
func Chromium(tb testing.TB) (path string) {
	tb.Helper()
	path, err := findOrInstall("Chromium", "chromium", howToGetChromium, findChromium)
	if err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	return path
}

// findChromium returns the path of the browser, or "".
func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
