package schemas_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"reflect"
	"testing"

	"github.com/invopop/jsonschema"

	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/schemas"
)

const policiesFile = "policies.json"

// TestPoliciesAreFresh compares the schema of the policy file with its types.
func TestPoliciesAreFresh(t *testing.T) {
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
		t.Errorf("%s is not what package policy says; run go generate ./schemas", policiesFile)
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
	s.Definitions["LimitSpec"].Required = []string{"key", "limit"}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// oneOrMany gives the schemas of the types that YAML may write in more than one way.
func oneOrMany(t reflect.Type) *jsonschema.Schema {
	list := func(item *jsonschema.Schema) *jsonschema.Schema {
		one := uint64(1)
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{item, {Type: "array", Items: item, MinItems: &one}}}
	}
	condition := func() *jsonschema.Schema {
		one := uint64(1)
		return &jsonschema.Schema{Type: "object", AdditionalProperties: list(&jsonschema.Schema{Type: "string"}), MinProperties: &one}
	}
	switch t {
	case reflect.TypeFor[policy.Amount]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: "1", Maximum: "1000000000"}, {Const: "unlimited"}}}
	case reflect.TypeFor[policy.Condition]():
		return condition()
	case reflect.TypeFor[policy.Conditions]():
		return list(condition())
	}
	return nil
}

// boundPolicies adds what the types do not say.
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
		"days":        func(f *jsonschema.Schema) { f.Items.Enum = []any{"mon", "tue", "wed", "thu", "fri", "sat", "sun"} },
	} {
		if f, ok := fields.Get(name); ok {
			refine(f)
		}
	}
}
