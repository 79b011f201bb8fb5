package limits_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const module = "github.com/seed503877ad/limits"

// mayImport says which of our packages each of our packages may import, by folder; "." is the module root. Imports
// point down only, as docs/architecture.md lists the packages: what decides knows nothing of what stores, carries or shows.
var mayImport = map[string][]string{
	".":                  {},
	"httplimit":          {"."},
	"internal/engine":    {},
	"internal/glob":      {},
	"internal/week":      {},
	"internal/zone":      {},
	"internal/yamlfile":  {"internal/zone"},
	"internal/policy":    {"internal/engine", "internal/glob", "internal/overrides", "internal/week", "internal/yamlfile", "internal/zone"},
	"internal/keys":      {},
	"internal/overrides": {"internal/glob", "internal/outage"},
	"internal/journal":   {"internal/engine"},
	"internal/columns":   {"internal/alerts", "internal/jobs", "internal/keys", "internal/overrides"},
	"internal/quickconn": {},
	"internal/natsconn":  {"internal/quickconn"},
	"internal/natscreds": {},
	"internal/redact":    {},
	"internal/outage":    {},
	"internal/bus":       {".", "internal/quickconn", "internal/natsconn", "internal/natscreds", "internal/redact", "internal/outage", "internal/engine", "internal/policy", "internal/alerts", "internal/jobs", "internal/keys", "internal/overrides", "internal/usage", "internal/zone"},
	"internal/alerts":    {".", "internal/glob", "internal/outage", "internal/redact", "internal/week", "internal/yamlfile"},
	"internal/jobs":      {"internal/redact"},
	"internal/usage":     {"internal/engine", "internal/outage"},
	"internal/postgres": {"internal/engine", "internal/columns", "internal/journal", "internal/outage", "internal/quickconn", "internal/alerts", "internal/jobs", "internal/keys", "internal/overrides", "internal/usage",
		"migrations"},
	"internal/sqlite": {"internal/engine", "internal/columns", "internal/journal", "internal/alerts", "internal/jobs", "internal/keys", "internal/overrides", "internal/usage",
		"migrations"},
	"internal/web":       {"internal/engine"},
	"internal/testenv":   {"migrations"},
	"internal/storetest": {"internal/engine", "internal/journal", "internal/alerts", "internal/jobs", "internal/keys", "internal/overrides", "internal/usage"},
	"internal/app": {".", "internal/redact", "internal/outage", "internal/engine", "internal/yamlfile", "internal/policy", "internal/bus", "internal/alerts",
		"internal/alerts/channel", "internal/alerts/deliver", "internal/jobs", "internal/keys", "internal/overrides", "internal/usage", "internal/postgres", "internal/sqlite", "internal/web", "schemas"},
	"internal/settings": {"internal/app", "internal/redact"},
	"cmd/limiter":       {".", "internal/app", "internal/settings", "internal/natscreds", "internal/redact"},
	"cmd/alerter":       {"internal/app", "internal/settings"},
	"migrations":        {},
	"schemas":           {},
	"examples":          {".", "httplimit"}, // and every folder in it that has no row of its own

	"internal/yamlfile/yamltest":   {"internal/yamlfile"},                                        // for tests only
	"internal/storetest/eachstore": {"internal/postgres", "internal/sqlite", "internal/testenv"}, // likewise
	"internal/app/apptest":         {"internal/app"},                                             // likewise
	"internal/testenv/browser":     {"internal/testenv"},                                         // likewise
	"internal/alerts/channel":      {"internal/alerts"},
	"internal/alerts/deliver":      {"internal/alerts", "internal/outage", "internal/redact"},

	"examples/internal/exampletest": {".", "internal/app", "internal/app/apptest", "internal/testenv"}, // for tests only
}

// TestImportsPointDown reads every file that is not a test, whatever its build tags. Tests may import what they need. An import
// that is allowed but no longer used has to be removed from mayImport.
func TestImportsPointDown(t *testing.T) {
	used := map[[2]string]bool{}
	for _, file := range sourceFiles(t, ".") {
		folder := path.Dir(file)
		allowed, known := mayImport[folder]
		if !known && strings.HasPrefix(folder, "examples/") {
			folder = "examples"
			allowed, known = mayImport[folder]
		}
		if !known {
			t.Errorf("%s: folder %s has no row in mayImport: add one that says what it may import", file, folder)
			continue
		}
		for _, imported := range imports(t, file) {
			if ours, ok := ourFolder(imported); ok {
				used[[2]string{folder, ours}] = true
				if !slices.Contains(allowed, ours) {
					t.Errorf("%s imports %s: %s may import of ours only %q", file, imported, folder, allowed)
				}
			} else if !mayImportForeign(folder, imported) {
				t.Errorf("%s imports %s, which %s must not know", file, imported, folder)
			}
		}
	}
	for folder, allowed := range mayImport {
		for _, ours := range allowed {
			if !used[[2]string{folder, ours}] {
				t.Errorf("%s may import %s and does not: take it out of mayImport", folder, ours)
			}
		}
	}
}

// mayImportForeign says which packages of other modules a folder may import, as docs/architecture.md lists them: the root is a
// small dependency, httplimit adds nothing to it, and the engine never sees NATS, SQL or the network.
func mayImportForeign(folder, imported string) bool {
	switch folder {
	case ".", "examples":
		thirdParty := strings.Contains(strings.Split(imported, "/")[0], ".")
		return !thirdParty || under(imported, "github.com/nats-io/nats.go")
	case "httplimit":
		return !strings.Contains(strings.Split(imported, "/")[0], ".")
	case "internal/engine":
		return !slices.ContainsFunc([]string{"net", "database/sql", "github.com/nats-io", "github.com/jackc"},
			func(tree string) bool { return under(imported, tree) })
	}
	return true
}

// TestEveryDependencyIsDocumented compares docs/dependencies.md with the direct requirements of go.mod, in both directions.
func TestEveryDependencyIsDocumented(t *testing.T) {
	found := func(file, pattern string) (names []string) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			names = append(names, match[1])
		}
		slices.Sort(names)
		return names
	}
	required, documented := found("go.mod", `(?m)^\t(\S+) v\S+$`), found("docs/dependencies.md", `(?m)^\| (\S+\.\S+) \|`)
	if diff := cmp.Diff(required, documented); diff != "" || len(required) == 0 {
		t.Errorf("docs/dependencies.md is not go.mod (-want +got):\n%s", diff)
	}
}

// TestPackagesAreListed: the table of packages in docs/architecture.md has every folder of mayImport, and says the same of it.
func TestPackagesAreListed(t *testing.T) {
	t.Parallel()
	called := func(folder string) string { // in the last column
		if folder == "." {
			return "limits"
		}
		return strings.TrimPrefix(folder, "internal/")
	}
	folders := map[string]string{}
	for folder := range mayImport {
		folders[called(folder)] = folder
	}
	listed := map[string]bool{"examples/internal/exampletest": true} // in the row of examples
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*`)(?: \\(limits\\))? \\| .* \\| (.*) \\|$").FindAllStringSubmatch(read(t, "docs/architecture.md"), -1) {
		var allowed, said []string
		for _, folder := range regexp.MustCompile("[^`, ]+").FindAllString(row[1], -1) {
			listed[folder] = true
			allowed = append(allowed, mayImport[folder]...)
		}
		for _, word := range regexp.MustCompile("[a-z/]+").FindAllString(row[2], -1) {
			if folder, known := folders[word]; known {
				said = append(said, folder)
			}
		}
		slices.Sort(allowed)
		slices.Sort(said)
		if diff := cmp.Diff(slices.Compact(allowed), slices.Compact(said), cmpopts.EquateEmpty()); diff != "" && row[2] != "all below" {
			t.Errorf("docs/architecture.md says of %s (-mayImport +documented):\n%s", row[1], diff)
		}
	}
	for folder := range mayImport {
		if !listed[folder] {
			t.Errorf("docs/architecture.md has no row for %s", folder)
		}
	}
}

// TestLibcIsTheOneOfSQLite: SQLite is C code that was translated for one version of modernc.org/libc, and must be built with
// that one. Another dependency can raise it.
func TestLibcIsTheOneOfSQLite(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.GoMod}}", "modernc.org/sqlite").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	libc := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(regexp.MustCompile(`modernc\.org/libc v\S+`).Find(text))
	}
	if want, got := libc(strings.TrimSpace(string(out))), libc("go.mod"); got != want || want == "" {
		t.Errorf("go.mod has %q, and SQLite was released with %q", got, want)
	}
}

func under(imported, tree string) bool {
	return imported == tree || strings.HasPrefix(imported, tree+"/")
}

// ourFolder returns the folder of an import path of this module.
func ourFolder(imported string) (folder string, ok bool) {
	if !under(imported, module) {
		return "", false
	}
	return path.Clean(strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")), true
}

func imports(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(file), nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, imported)
	}
	return paths
}

// sourceFiles lists the module's Go files that are not tests, as slash-separated paths below root.
func sourceFiles(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != root && !partOfModule(name) {
			return filepath.SkipDir
		}
		if !entry.IsDir() && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			files = append(files, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no source files found")
	}
	return files
}

// partOfModule follows the go command, which skips folders that are hidden, testdata or a module of their own.
func partOfModule(dir string) bool {
	name := filepath.Base(dir)
	if name[0] == '.' || name[0] == '_' || name == "testdata" {
		return false
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return os.IsNotExist(err)
}
