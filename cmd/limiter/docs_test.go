package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
)

// setting is a row of a table of settings: variable and default, by flag.
type setting struct{ env, value string }

var settingRow = regexp.MustCompile("(?m)^\\| `--([a-z-]+)`(?: a)? \\| `([A-Z_]+)` \\| ([^|]+) \\| [^|]+ \\|$")

func documented(t *testing.T, file string) map[string]setting {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]setting{}
	for _, row := range settingRow.FindAllStringSubmatch(string(text), -1) {
		rows[row[1]] = setting{row[2], row[3]}
	}
	return rows
}

// TestEverySettingIsDocumented compares the table of docs/operations.md with the flags of serve.
func TestEverySettingIsDocumented(t *testing.T) {
	t.Parallel()
	var c commands
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	rows, flags := documented(t, "../../docs/operations.md"), map[string]string{}
	for _, verb := range parser.Model.Children {
		if verb.Name != "serve" {
			continue
		}
		for _, f := range verb.Flags {
			flags[f.Name] = strings.Join(f.Envs, ",")
			row, found := rows[f.Name]
			if !found || row.env != flags[f.Name] {
				t.Errorf("docs/operations.md: --%s (%s): row %+v", f.Name, flags[f.Name], row)
			}
			if f.Default != "" && row.value != "`"+f.Default+"`" {
				t.Errorf("docs/operations.md: --%s: the default is %s, not %s", f.Name, f.Default, row.value)
			}
		}
	}
	if len(flags) < 20 {
		t.Errorf("only %d flags: %v", len(flags), flags)
	}
	for name, row := range documented(t, "../../README.md") {
		if env, found := flags[name]; !found || env != row.env {
			t.Errorf("README.md: --%s (%s) is no setting", name, row.env)
		}
	}
}

// TestComposeVariablesAreSettings: a variable that is not one would be ignored.
func TestComposeVariablesAreSettings(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Environment map[string]string
			Entrypoint  []string
			Healthcheck struct{ Test []string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, row := range documented(t, "../../docs/operations.md") {
		known[row.env] = true
	}
	for _, name := range []string{"migrate", "limiter", "alerter"} {
		service := file.Services[name]
		if service.Environment["DATABASE_URL"] == "" {
			t.Errorf("compose.yaml: %s has no DATABASE_URL: %+v", name, service)
		}
		for env := range service.Environment {
			if !known[env] {
				t.Errorf("compose.yaml: %s sets %s, which is no setting", name, env)
			}
		}
	}
	if e := file.Services["alerter"].Entrypoint; len(e) != 1 || e[0] != "/alerter" {
		t.Errorf("compose.yaml: the alerter runs %q", e)
	}
}

// TestImageHasEveryProgram: the Dockerfile builds and copies every program in cmd.
func TestImageHasEveryProgram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob("../../cmd/*")
	if err != nil || len(programs) == 0 {
		t.Fatalf("%q, %v", programs, err)
	}
	for _, program := range programs {
		name := filepath.Base(program)
		for _, want := range []string{` ./cmd/` + name + `\b`, `(?m)^COPY --from=build .*/out/` + name + `\b.* /$`} {
			if !regexp.MustCompile(want).Match(text) {
				t.Errorf("%s: the Dockerfile has nothing that fits %s", program, want)
			}
		}
	}
}

// TestGroupsHaveExamples in their help, which are valid usage.
func TestGroupsHaveExamples(t *testing.T) {
	t.Parallel()
	parser := newParser()
	groups := []*kong.Node{parser.Model.Node}
	for _, n := range parser.Model.Children {
		if !n.Leaf() {
			groups = append(groups, n)
		}
	}
	for _, group := range groups {
		i := limiter(t, append(withoutPlaceholders(strings.Fields(group.Path())), "--help")...)
		i.want(t, exitDone, "Examples:\n", "")
		examples := 0
		for line := range strings.Lines(group.Detail) {
			if args, is := strings.CutPrefix(strings.TrimSpace(line), "limiter"); is {
				examples++
				if _, err := parser.Parse(strings.Fields(args)); err != nil {
					t.Errorf("%s: %v", strings.TrimSpace(line), err)
				}
			}
		}
		if examples == 0 {
			t.Errorf("%s has no example", group.Path())
		}
	}
	if len(groups) < 2 {
		t.Errorf("only %d groups", len(groups))
	}
}
