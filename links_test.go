package limits_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	code      = regexp.MustCompile("(?ms)^```.*?^```$|`[^`\n]*`")
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	linkTo    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.+)$`)
	unwanted  = regexp.MustCompile("[^a-z0-9 _-]")
)

// TestLinksLead: each link of a Markdown file to another file, or to a heading, has that file and that heading at its end.
func TestLinksLead(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, page := range slices.Concat(matching(t, "*.md"), matching(t, "*/*.md"), matching(t, "examples/*/*.md")) {
		for _, link := range linkTo.FindAllStringSubmatch(code.ReplaceAllString(read(t, page), ""), -1) {
			file, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(file, ":") {
				continue // the network is not asked
			}
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if len(matching(t, target)) == 0 {
				t.Errorf("%s: no file is at %s", page, link[1])
			} else if anchor != "" && !anchorsOf(read(t, target))[anchor] {
				t.Errorf("%s: %s has no heading for #%s", page, target, anchor)
			}
			checked++
		}
	}
	if checked < 50 {
		t.Errorf("only %d links are found", checked)
	}
}

func matching(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// anchorsOf names the headings of a Markdown file as GitHub does.
func anchorsOf(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		all[strings.ReplaceAll(unwanted.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return all
}
