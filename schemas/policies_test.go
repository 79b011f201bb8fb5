package schemas_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/schemas"
)

const policiesFile = "policies.json"

// TestPoliciesSchemaIsUpToDate compares the schema of the policy file with its types.
func TestPoliciesSchemaIsUpToDate(t *testing.T) {
	want := policiesSchema(t)
	if *update {
		if err := os.WriteFile(policiesFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := fs.ReadFile(schemas.FS, policiesFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s does not match package policy; run go generate ./schemas", policiesFile)
	}
}

func policiesSchema(t *testing.T) []byte {
	t.Helper()
	r := jsonschema.Reflector{Anonymous: true, ExpandedStruct: true, Mapper: oneOrMany,
		CommentMap: commentsOf(t, "../internal/policy", module+"/internal/policy")}
	s := r.Reflect(policy.File{})
	s.Title, s.Description = "Policy file of Limits", ""
	boundPolicies(s.Properties)
	for _, def := range s.Definitions {
		if def.Properties != nil {
			boundPolicies(def.Properties)
		}
	}
	spec := s.Definitions["LimitSpec"]
	spec.Required = []string{"key", "limit"}
	unlimited := jsonschema.NewProperties()
	unlimited.Set("limit", &jsonschema.Schema{Const: "unlimited"})
	spec.AnyOf = []*jsonschema.Schema{{Required: []string{"window"}}, {Properties: unlimited, Required: []string{"name"}}}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// oneOrMany returns the schemas of the types that have more than one form in YAML.
func oneOrMany(t reflect.Type) *jsonschema.Schema {
	list := func(item *jsonschema.Schema, most *uint64) *jsonschema.Schema {
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{item, {Type: "array", Items: item, MinItems: number(1), MaxItems: most}}}
	}
	condition := func() *jsonschema.Schema {
		patterns := list(&jsonschema.Schema{Type: "string"}, number(100))
		return &jsonschema.Schema{Type: "object", AdditionalProperties: patterns, MinProperties: number(1)}
	}
	switch t {
	case reflect.TypeFor[policy.Amount]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: "1", Maximum: "1000000000"}, {Const: "unlimited"}}}
	case reflect.TypeFor[policy.Condition]():
		return condition()
	case reflect.TypeFor[policy.Conditions]():
		return list(condition(), nil)
	}
	return nil
}

func number(n uint64) *uint64 { return &n }

// boundPolicies adds constraints that the types do not express.
func boundPolicies(fields interface {
	Get(string) (*jsonschema.Schema, bool)
}) {
	const timeOfDay = "^([01][0-9]|2[0-3]):[0-5][0-9]$"
	for name, refine := range map[string]func(f *jsonschema.Schema){
		"name":        func(f *jsonschema.Schema) { f.Pattern = "^[A-Za-z0-9._/-]{1,64}$" },
		"group":       func(f *jsonschema.Schema) { f.Pattern = "^[A-Za-z0-9._/-]{1,64}$" },
		"mode":        func(f *jsonschema.Schema) { f.Enum = []any{"enforce", "shadow"} },
		"on_error":    func(f *jsonschema.Schema) { f.Enum = []any{"allow", "deny", "local"} },
		"warning":     func(f *jsonschema.Schema) { f.Minimum, f.Maximum = "0", "1" },
		"algorithm":   func(f *jsonschema.Schema) { f.Enum = []any{"sliding_window", "fixed_window", "token_bucket"} },
		"anchor":      func(f *jsonschema.Schema) { f.Enum = []any{"aligned", "first_use"} },
		"consistency": func(f *jsonschema.Schema) { f.Enum = []any{"exact", "leased"} },
		"burst":       func(f *jsonschema.Schema) { f.Minimum, f.Maximum = "0", "1000000000" },
		"window":      func(f *jsonschema.Schema) { f.Pattern = "^([1-9][0-9]*(ms|s|m|h|d|w)|minute|hour|day|week|month)$" },
		"from":        func(f *jsonschema.Schema) { f.Pattern = timeOfDay },
		"to":          func(f *jsonschema.Schema) { f.Pattern = "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$" },
		"factor":      func(f *jsonschema.Schema) { f.ExclusiveMinimum, f.Maximum = "0", "1000" },
		"policies":    func(f *jsonschema.Schema) { f.MinItems, f.MaxItems = number(1), number(1000) },
		"attributes":  func(f *jsonschema.Schema) { f.Items.Pattern = "^[A-Za-z_][A-Za-z0-9_.-]{0,63}$" },
		"tiers":       func(f *jsonschema.Schema) { f.MaxProperties = number(64) },
		"schedule":    func(f *jsonschema.Schema) { f.MaxItems = number(32) },
		"message":     func(f *jsonschema.Schema) { f.MaxLength = number(512) },
		"unit":        func(f *jsonschema.Schema) { f.MaxLength = number(32) },
		"limits": func(f *jsonschema.Schema) {
			if f.Type == "array" { // not the changes of a schedule entry
				f.MinItems, f.MaxItems = number(1), number(16)
			}
		},
		"days": func(f *jsonschema.Schema) { f.Items.Enum = []any{"mon", "tue", "wed", "thu", "fri", "sat", "sun"} },
	} {
		if f, ok := fields.Get(name); ok {
			refine(f)
		}
	}
}

// fileVerdict returns a function that validates a YAML file with a schema.
func fileVerdict(t *testing.T, name string) func(text string) error {
	t.Helper()
	data, err := fs.ReadFile(schemas.FS, name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := validator.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := validator.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) error {
		t.Helper()
		j, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatalf("%.200s: %v", text, err)
		}
		v, err := validator.UnmarshalJSON(bytes.NewReader(j))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
}

// TestPoliciesSchemaAcceptsValidFiles: the schema accepts files that the loader accepts.
func TestPoliciesSchemaAcceptsValidFiles(t *testing.T) {
	t.Parallel()
	verdict := fileVerdict(t, policiesFile)
	files, err := filepath.Glob("../examples/*/policies.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("files %v, error %v; want those of the examples", files, err)
	}
	for _, file := range append(files, "../internal/policy/testdata/full.yaml") {
		if err := verdict(readText(t, file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestPoliciesSchemaHasTheBounds of a policy file. The tests of package policy check the loader for the same bounds.
func TestPoliciesSchemaHasTheBounds(t *testing.T) {
	t.Parallel()
	verdict := fileVerdict(t, policiesFile)
	many := func(n int, each string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, each, i)
		}
		return b.String()
	}
	const limit = "limits: [{key: k, limit: 1, window: 1m}]"
	for name, bounded := range map[string]struct {
		most int
		file func(n int) string
	}{
		"policies": {1000, func(n int) string { return "policies: [" + many(n, "{name: p%d, "+limit+"}, ") + "]" }},
		"limits": {16, func(n int) string {
			return "policies: [{name: p, limits: [" + many(n, "{name: l%d, key: k, limit: 1, window: 1m}, ") + "]}]"
		}},
		"tiers": {64, func(n int) string {
			return "policies: [{name: p, " + limit + ", tiers: {" + many(n, "t%d: {1m: {limit: 2}}, ") + "}}]"
		}},
		"schedule": {32, func(n int) string {
			return "policies: [{name: p, " + limit + ", schedule: [" + many(n, `{from: "00:%02d", to: "00:59", factor: 2}, `) + "]}]"
		}},
		"patterns": {100, func(n int) string {
			return "policies: [{name: p, " + limit + ", match: {a: [" + many(n, "v%d, ") + "]}}]"
		}},
		"message": {512, func(n int) string {
			return "policies: [{name: p, " + limit + ", message: " + strings.Repeat("a", n) + "}]"
		}},
		"unit": {32, func(n int) string {
			return "policies: [{name: p, " + limit + ", unit: " + strings.Repeat("a", n) + "}]"
		}},
	} {
		if err := verdict(bounded.file(bounded.most)); err != nil {
			t.Errorf("%d %s: %v; want it accepted", bounded.most, name, err)
		}
		if verdict(bounded.file(bounded.most+1)) == nil {
			t.Errorf("%d %s are accepted; want %d at most", bounded.most+1, name, bounded.most)
		}
	}
	for _, bad := range []string{
		"policies: []", "policies: [{name: p, limits: []}]", "attributes: [a b]\npolicies: [{name: p, " + limit + "}]",
		"policies: [{name: p, limits: [{name: l, key: k, limit: 1}]}]", "policies: [{name: p, limits: [{key: k, limit: unlimited}]}]",
	} {
		if verdict(bad) == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
	if err := verdict("policies: [{name: p, limits: [{name: l, key: k, limit: unlimited}, {key: k, limit: 1, window: 1m}]}]"); err != nil {
		t.Errorf("a limit that is unlimited and has no window: %v; want it accepted", err)
	}
}
