package limits_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var (
	goBlock   = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	qualified = regexp.MustCompile(`\b([a-z]+)\.[A-Z]`)
	defined   = regexp.MustCompile(`(?m)^(\w+)(?:, \w+)? :=`)
	fieldsOf  = regexp.MustCompile(`^[A-Z]\w+: `)
)

// snippetImports are the import paths of the packages that snippets use, by name.
var snippetImports = map[string]string{
	"context": "context", "io": "io", "log": "log", "http": "net/http", "netip": "net/netip", "os": "os", "time": "time",
	"nats": "github.com/nats-io/nats.go", "limits": module, "httplimit": module + "/httplimit",
	"standardwebhooks": "github.com/standard-webhooks/standard-webhooks/libraries/go",
}

// TestSnippetsCompile runs go vet on the Go code of README.md and docs. Variables that a snippet takes from its surroundings are
// declared here.
func TestSnippetsCompile(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, found := besideTheModule(t), 0
	for _, page := range append(pages, "README.md") {
		for i, block := range goBlock.FindAllStringSubmatch(read(t, page), -1) {
			// http.ListenAndServe waits for headers for ever, so code that is copied from the docs must not use it.
			if strings.Contains(block[1], "http.ListenAndServe(") {
				t.Errorf("%s: Go block %d has http.ListenAndServe, which knows no timeout: show an http.Server", page, i+1)
			}
			folder := fmt.Sprintf("%s_%d", strings.TrimSuffix(filepath.Base(page), ".md"), i+1)
			write(t, filepath.Join(dir, folder, "main.go"), snippetProgram(block[1]))
			found++
		}
	}
	if found < 5 {
		t.Fatalf("only %d Go blocks are found", found)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	vet := exec.CommandContext(ctx, "go", "vet", "./...")
	vet.Dir = dir
	if out, err := vet.CombinedOutput(); err != nil {
		t.Errorf("go vet: %v\n%s", err, out)
	}
}

// besideTheModule returns the folder of a new module with the same requirements, and a requirement of this one.
func besideTheModule(t *testing.T) (dir string) {
	t.Helper()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	write(t, filepath.Join(dir, "go.sum"), read(t, "go.sum"))
	write(t, filepath.Join(dir, "go.mod"), strings.Replace(read(t, "go.mod"), "module "+module, "module snippets", 1)+
		fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %[1]s => %q\n", module, here))
	return dir
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// snippetProgram makes a package of a snippet, which is a package, the body of a function, or fields of a Config.
func snippetProgram(snippet string) string {
	if strings.HasPrefix(snippet, "package ") {
		return snippet
	}
	if fieldsOf.MatchString(snippet) {
		snippet = "_ = httplimit.Config{\n" + snippet + "}\n"
	}
	for _, name := range defined.FindAllStringSubmatch(snippet, -1) {
		snippet += "_ = " + name[1] + "\n"
	}
	snippet = `func main() {}

func snippet(ctx context.Context, client *limits.Client, mux *http.ServeMux, resp *http.Response,
	show func(string), planOf func(*http.Request) string) {
	{
` + snippet + "}\n}\n"
	imports := map[string]bool{}
	for _, name := range qualified.FindAllStringSubmatch(snippet, -1) {
		if path := snippetImports[name[1]]; path != "" && !imports[path] {
			imports[path] = true
			snippet = fmt.Sprintf("import %s %q\n%s", name[1], path, snippet)
		}
	}
	return "package main\n\n" + snippet
}
