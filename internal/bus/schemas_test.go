package bus

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/schemas"
)

// readers read the bodies that the schemas describe, by subject.
func readers(t *testing.T) map[string]func(data []byte) error {
	d, err := newDecoder(0.1)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{decoder: d, now: time.Now}
	wellSaid := func(err error) error {
		if e := new(limits.Error); errors.As(err, &e) && e.Status == 404 {
			return nil // of a policy that is not there
		}
		return err
	}
	return map[string]func(data []byte) error{
		limits.SubjectConsume:     func(b []byte) error { return wellSaid(d.decode(engine.Consume, b, nil, &engine.Request{})) },
		limits.SubjectStatus:      func(b []byte) error { _, _, err := s.decodeStatus(b); return wellSaid(err) },
		limits.SubjectVerify:      func(b []byte) error { _, err := s.decodeVerify(b); return err },
		limits.SubjectList:        func(b []byte) error { _, err := decodeList(b); return err },
		limits.SubjectReset:       func(b []byte) error { _, err := decodeReset(b); return err },
		limits.SubjectSettle:      func(b []byte) error { return decodeSettle(b, new(engine.Request)) },
		limits.SubjectTop:         func(b []byte) error { _, err := decodeTop(b, time.Now()); return err },
		limits.SubjectUsageReport: func(b []byte) error { _, _, err := decodeUsage(b, time.Now()); return err },
		limits.SubjectUsage: func(b []byte) (err error) {
			for _, line := range logLines(b) {
				_, wrong := decodeLogEntry(line, time.Now())
				err = cmp.Or(err, wrong)
			}
			return err
		},
		limits.SubjectKeysCreate:    func(b []byte) error { _, err := s.decodeCreateKey(b); return err },
		limits.SubjectKeysList:      func(b []byte) error { _, err := decodeListKeys(b); return err },
		limits.SubjectKeysRevoke:    func(b []byte) error { _, err := decodeKeyID(b); return err },
		limits.SubjectKeysExpire:    func(b []byte) error { _, _, err := s.decodeExpireKey(b); return err },
		limits.SubjectOverridesSet:  func(b []byte) error { _, err := s.decodeOverride(b); return err },
		limits.SubjectOverridesList: func(b []byte) error { _, err := decodeListOverrides(b); return err },
		limits.SubjectPolicies:      func(b []byte) error { _, err := decodePolicies(b); return err },
		limits.SubjectJobsRun:       func(b []byte) error { _, err := decodeRunJob(b); return err },
		limits.SubjectJobsHistory:   func(b []byte) error { _, err := decodeJobHistory(b); return err },
		limits.SubjectAlertsList:    func(b []byte) error { _, err := decodeListAlerts(b); return err },
		limits.SubjectAlertsShow:    func(b []byte) error { _, err := decodeAlertID(b, ""); return err },
		limits.SubjectAlertsDead:    func(b []byte) error { _, _, err := decodeDead(b); return err },
		limits.SubjectAlertsReplay:  func(b []byte) error { _, err := decodeReplay(b); return err },
		limits.SubjectAlertsSilence: func(b []byte) error { _, _, err := s.decodeSilence(b); return err },
		limits.SubjectAlertsTest:    func(b []byte) error { _, _, err := decodeTestAlert(b); return err },
	}
}

// verdicts returns a function that validates a body by a schema.
func verdicts(t *testing.T, name string) func(body string) error {
	t.Helper()
	data, err := fs.ReadFile(schemas.FS, name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return func(body string) error {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return schema.Validate(v)
	}
}

// TestSchemaAndServiceAgreeOnExamples: they agree on which of these bodies are valid.
func TestSchemaAndServiceAgreeOnExamples(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("a", n) }
	all := readers(t)
	for subject, bodies := range map[string]struct{ good, bad []string }{
		limits.SubjectTop: {
			good: []string{`{}`, `{"policy":""}`, `{"policy":"p","prefix":"","user":"","by":"used","period":"1h"}`},
			bad: []string{`{"policy":"` + long(65) + `"}`, `{"by":""}`, `{"max":0}`, `{"period":"1h","since":1}`, `{"until":70368744177664}`,
				`{"since":1,"until":253402300800000}`},
		},
		limits.SubjectConsume: {
			good: []string{`{"attributes":{"a":""}}`, `{"key":"k","limit":1,"window":"1m","burst":0}`,
				`{"key":"k","limit":1,"window":"1m","burst":1,"algorithm":"token_bucket"}`, `{"key":"ü","limit":1,"window":"day","timezone":"UTC"}`,
				`{"key":"k","limit":1,"window":"month","anchor":"first_use"}`, `{"key":"k","limit":1,"window":"1h","anchor":"aligned"}`,
				`{"key":"k","limit":1,"window":"1h","anchor":"first_use","algorithm":"fixed_window"}`,
				`{"key":"k","limit":1,"window":"day","algorithm":"fixed_window"}`},
			bad: []string{`{"key":"a\nb","limit":1,"window":"1m"}`, `{"key":"k","limit":1,"window":"1m","id":"a\tb"}`, `{"attributes":{"a":"\u007f"}}`,
				`{"key":"k","limit":1,"window":"1m","burst":1}`, `{"key":"k","limit":1,"window":"1m","burst":1,"algorithm":"fixed_window"}`,
				`{"key":"k","limit":1,"window":"1m","timezone":"UTC"}`, `{"key":"k","limit":1,"window":"1m","anchor":"first_use"}`,
				`{"key":"k","limit":1,"window":"day","algorithm":"token_bucket"}`,
				`{"limits":[{"key":"k","limit":1,"window":"day","algorithm":"sliding_window","anchor":"first_use"}]}`,
				`{"attributes":{"":"a"}}`, `{"attributes":{"` + long(65) + `":"a"}}`, `{"attributes":{"a":"` + long(257) + `"}}`,
				`{"key":"k","limit":1,"window":"day","timezone":""}`},
		},
		limits.SubjectUsage: {
			good: []string{`{"key":"k","endpoint":"e","method":"GET","status":200,"millis":1}`,
				`[{"key":"k","endpoint":"e","method":"GET","status":200,"millis":1},{"key":"k","endpoint":"e","method":"GET","status":200,"millis":1}]`},
			bad: []string{`[]`, `{}`, `[{}]`, `7`, `[7]`, `[[{"key":"k","endpoint":"e","method":"GET","status":200,"millis":1}]]`,
				`[{"key":"k","endpoint":"e","method":"GET","status":200,"millis":1},{"key":"","endpoint":"e","method":"GET","status":200,"millis":1}]`},
		},
		limits.SubjectKeysCreate: {
			good: []string{`{"user":"u","expiresAt":253402300799999}`},
			bad:  []string{`{"user":"u","expiresAt":253402300800000}`, `{"user":"u","attributes":{"tier":"a"}}`},
		},
		limits.SubjectOverridesList: {
			good: []string{`{}`, `{"policy":""}`, `{"policy":"p","after":"","max":1}`},
			bad:  []string{`{"policy":"` + long(65) + `"}`, `{"name":"n"}`},
		},
		limits.SubjectKeysList: {
			good: []string{`{}`, `{"prefix":""}`, `{"prefix":"` + long(64) + `"}`},
			bad:  []string{`{"prefix":"` + long(65) + `"}`, `{"after":"` + long(65) + `"}`, `{"user":"` + long(257) + `"}`},
		},
		limits.SubjectReset: {
			good: []string{`{"key":"k"}`, `{"key":"k","all":false,"dryRun":true}`, `{"prefix":"p"}`, `{"prefix":"` + long(256) + `"}`, `{"prefix":"p","all":false}`,
				`{"all":true}`, `{"all":true,"prefix":""}`},
			bad: []string{`{}`, `{"dryRun":true}`, `{"key":""}`, `{"key":"k","prefix":"p"}`, `{"key":"k","prefix":""}`,
				`{"key":"k","all":true}`, `{"prefix":""}`, `{"prefix":"","all":false}`, `{"all":false}`, `{"prefix":"p","all":true}`,
				`{"prefix":"` + long(257) + `"}`, `{"prefix":7,"all":true}`},
		},
		limits.SubjectAlertsReplay: {
			good: []string{`{"id":"a/b"}`, `{"id":"a/b","all":false}`, `{"channel":"log"}`, `{"channel":"log","all":false}`, `{"all":true}`},
			bad: []string{`{}`, `{"all":false}`, `{"id":""}`, `{"channel":""}`, `{"channel":"log","all":true}`, `{"id":"a","all":true}`,
				`{"id":"a","channel":"log"}`, `{"channel":"` + long(513) + `"}`},
		},
		limits.SubjectOverridesSet: {
			good: []string{
				`{"policy":"p","name":"n","subject":"s","reason":"r","unlimited":true}`,
				`{"policy":"p","name":"n","subject":"s","reason":"r","unlimited":false,"limit":1}`,
				`{"policy":"p","name":"n","subject":"s","reason":"r","limit":1,"window":"1m","burst":0,"by":"b"}`,
			},
			bad: []string{
				`{"policy":"p","name":"n","subject":"s","reason":"r"}`,
				`{"policy":"p","name":"n","subject":"s","reason":"r","unlimited":false}`,
				`{"policy":"p","name":"n","subject":"s","reason":"r","unlimited":true,"limit":1}`,
				`{"policy":"p","name":"n","subject":"s","reason":"r","unlimited":true,"limit":1,"window":"1m"}`,
				`{"policy":"p","name":"n","subject":"s","reason":"r","unlimited":true,"burst":0}`,
				`{"policy":"p","name":"n","subject":"s","reason":"","limit":1}`,
				`{"policy":"p","name":"n","reason":"r","limit":1}`,
				`{"policy":"p","name":"n","subject":"s","reason":"r","limit":1,"expiresAt":253402300800000}`,
			},
		},
		limits.SubjectAlertsSilence: {
			good: []string{`{"user":"7","for":1000,"reason":"r"}`, `{"rule":"*","policy":"p","key":"k","for":1000,"reason":"r","by":""}`,
				`{"policy":"p","expiresAt":` + soon() + `,"reason":"r"}`},
			bad: []string{`{"user":"7","for":1000,"reason":""}`, `{"user":"","for":1000,"reason":"r"}`, `{"rule":"","for":1000,"reason":"r"}`,
				`{"policy":"","for":1000,"reason":"r"}`, `{"key":"","for":1000,"reason":"r"}`, `{"for":1000,"reason":"r"}`,
				`{"user":"7","for":1000}`, `{"user":"7","reason":"r"}`, `{"user":"7","for":1000,"expiresAt":` + soon() + `,"reason":"r"}`,
				`{"user":"7","for":1000,"reason":"` + long(257) + `"}`},
		},
	} {
		schema := verdicts(t, requestSchema(subject))
		for i, body := range slices.Concat(bodies.good, bodies.bad) {
			good := i < len(bodies.good)
			if err := all[subject]([]byte(body)); good != (err == nil) {
				t.Errorf("%s: %s: the service says %v", subject, body, err)
			}
			if err := schema(body); good != (err == nil) {
				t.Errorf("%s: %s: the schema says %v", subject, body, err)
			}
		}
	}
}

// TestSchemasAgreeWithTheService: for variants of a valid body, with any field or any two fields
// changed, the schema and the service agree. The service may refuse more only if a schema cannot
// express it.
func TestSchemasAgreeWithTheService(t *testing.T) {
	t.Parallel()
	all := readers(t)
	for subject, c := range map[string]struct {
		body string
		// unsaid are the fields of which the schema does not say all.
		unsaid []string
	}{
		limits.SubjectList:          {`{}`, []string{"after"}},
		limits.SubjectReset:         {`{"key":"k"}`, nil},
		limits.SubjectSettle:        {`{"id":"i","cost":1}`, nil},
		limits.SubjectStatus:        {`{"key":"k"}`, nil},
		limits.SubjectTop:           {`{}`, []string{"period", "until"}},
		limits.SubjectUsageReport:   {`{"report":"errors"}`, []string{"period", "until"}},
		limits.SubjectVerify:        {`{"apiKey":"k"}`, nil},
		limits.SubjectAlertsTest:    {`{}`, nil},
		limits.SubjectConsume:       {`{"key":"k","limit":1,"window":"1m"}`, []string{"window", "timezone", "burst", "anchor"}},
		limits.SubjectUsage:         {`{"key":"k","endpoint":"e","method":"GET","status":200,"millis":1}`, []string{"at"}},
		limits.SubjectKeysCreate:    {`{"user":"u"}`, []string{"expiresAt"}},
		limits.SubjectKeysList:      {`{}`, nil},
		limits.SubjectKeysRevoke:    {`{"id":"abcdefgh"}`, nil},
		limits.SubjectKeysExpire:    {`{"id":"abcdefgh","expiresAt":0}`, []string{"expiresAt"}},
		limits.SubjectOverridesSet:  {`{"policy":"p","name":"n","subject":"s","reason":"r","limit":1}`, []string{"expiresAt"}},
		limits.SubjectOverridesList: {`{}`, []string{"after"}},
		limits.SubjectPolicies:      {`{}`, nil},
		limits.SubjectJobsRun:       {`{"job":"j"}`, nil},
		limits.SubjectJobsHistory:   {`{}`, nil},
		limits.SubjectAlertsList:    {`{}`, []string{"after"}},
		limits.SubjectAlertsShow:    {`{"id":"i"}`, nil},
		limits.SubjectAlertsDead:    {`{}`, nil},
		limits.SubjectAlertsReplay:  {`{"channel":"log"}`, nil},
		limits.SubjectAlertsSilence: {`{"user":"7","for":1000,"reason":"r"}`, []string{"expiresAt"}},
	} {
		schema := verdicts(t, requestSchema(subject))
		differ := 0
		for _, body := range around(t, requestSchema(subject), c.body) {
			said, read := schema(body), all[subject]([]byte(body))
			var e *limits.Error
			if unsaid := said == nil && errors.As(read, &e) && slices.Contains(c.unsaid, e.Field); unsaid || (said == nil) == (read == nil) {
				continue
			}
			if differ++; differ <= 5 {
				t.Errorf("%s: %.300s: the schema says %v, the service %v", subject, body, said, read)
			}
		}
	}
}

// soon is a time in the future, in Unix milliseconds.
func soon() string {
	b, _ := json.Marshal(time.Now().Add(time.Hour).UnixMilli())
	return string(b)
}

// attributes are n attributes.
func attributes(n int) map[string]any {
	m := map[string]any{}
	for i := range n {
		m[fmt.Sprint("a", i)] = ""
	}
	return m
}

// around returns the body, and variants with each field and each two fields of the schema changed
// in many ways.
func around(t *testing.T, name, body string) (bodies []string) {
	t.Helper()
	data, err := fs.ReadFile(schemas.FS, name)
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties map[string]struct{ Type string }
	}
	var base map[string]any
	if err := errors.Join(json.Unmarshal(data, &schema), json.Unmarshal([]byte(body), &base)); err != nil {
		t.Fatal(err)
	}
	add := func(m map[string]any) {
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, string(b))
	}
	absent := struct{}{}
	with := func(m map[string]any, field string, v any) map[string]any {
		m = maps.Clone(m)
		if m[field] = v; v == any(absent) {
			delete(m, field)
		}
		return m
	}
	few := map[string][]any{
		"string":  {absent, "", "a", "1h"},
		"integer": {absent, 0, 1, json.Number(soon())},
		"boolean": {absent, false, true},
	}
	many := map[string][]any{
		"integer": {-1, json.Number("-0"), json.Number("1.0"), json.Number("1e2"), json.Number("1.5"), json.Number("1e-2"), json.Number("1e40"), 100, 101, 1000, 1001, 86_400_000, 86_400_001, 1_000_000_000, 1_000_000_001, int64(maxTime), int64(maxTime + 1)},
		"object": {attributes(16), attributes(17), attributes(32), attributes(33), map[string]any{"": "a"}, map[string]any{"user": "a"},
			map[string]any{strings.Repeat("a", 64): strings.Repeat("a", 256)}, map[string]any{strings.Repeat("a", 65): "a"},
			map[string]any{"a": strings.Repeat("a", 257)}, map[string]any{"a": ""}, map[string]any{"a": 1}},
	}
	for _, n := range []int{16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 512, 513} {
		many["string"] = append(many["string"], strings.Repeat("a", n))
	}
	add(base)
	add(with(base, "unknown", 1))
	fields := slices.Sorted(maps.Keys(schema.Properties))
	for i, one := range fields {
		kind := schema.Properties[one].Type
		for _, v := range slices.Concat(few[kind], many[kind], []any{nil, "b", 2, true, []any{}, map[string]any{}}) {
			add(with(base, one, v))
		}
		for _, other := range fields[:i] {
			for _, v := range few[kind] {
				for _, w := range few[schema.Properties[other].Type] {
					add(with(with(base, one, v), other, w))
				}
			}
		}
	}
	return bodies
}
