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
	heldIn    = regexp.MustCompile("((?:`Test[^`\\n]+`(?:, )?)+) \\(([a-z0-9/, ]+)\\)")
	aTest     = regexp.MustCompile("`(Test[A-Za-z0-9_]+)(…)?[^`]*`")
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

// TestGuaranteesAreHeld: each test that README.md names for a guarantee is in each of the folders that it names.
func TestGuaranteesAreHeld(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, held := range heldIn.FindAllStringSubmatch(read(t, "README.md"), -1) {
		for folder := range strings.SplitSeq(held[2], ", ") {
			var tests strings.Builder
			for _, file := range matching(t, filepath.Join(folder, "*_test.go")) {
				tests.WriteString(read(t, file))
			}
			for _, name := range aTest.FindAllStringSubmatch(held[1], -1) {
				function := "\nfunc " + name[1]
				if name[2] == "" {
					function += "(t *testing.T)"
				}
				if !strings.Contains(tests.String(), function) {
					t.Errorf("README.md names %s, which is not in %s", name[0], folder)
				}
				checked++
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d tests are found in README.md", checked)
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
