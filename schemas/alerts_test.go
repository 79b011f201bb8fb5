package schemas_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/schemas"
)

const alertsFile = "alerts.json"

// TestAlertsSchemaIsUpToDate compares the schema of the alerts file with its types.
func TestAlertsSchemaIsUpToDate(t *testing.T) {
	want := alertsSchema(t)
	if *update {
		if err := os.WriteFile(alertsFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := fs.ReadFile(schemas.FS, alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s does not match package alerts; run go generate ./schemas", alertsFile)
	}
}

func alertsSchema(t *testing.T) []byte {
	t.Helper()
	r := jsonschema.Reflector{Anonymous: true, ExpandedStruct: true, Mapper: textOrTexts,
		CommentMap: commentsOf(t, "../internal/alerts", module+"/internal/alerts")}
	s := r.Reflect(alerts.File{})
	s.Title, s.Description = "Alerts file of Limits", ""
	for name, refine := range alertFields {
		def := s.Definitions[name]
		for field, f := range refine {
			p, ok := def.Properties.Get(field)
			if !ok {
				t.Fatalf("%s has no field %s", name, field)
			}
			f(p)
		}
	}
	oneTarget(s.Definitions["FileChannel"])
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// oneTarget asks for exactly one target of a channel, and for none and a setting of a built-in one.
func oneTarget(channel *jsonschema.Schema) {
	names := jsonschema.NewProperties()
	names.Set("name", &jsonschema.Schema{Enum: []any{alerts.ChannelNATS, alerts.ChannelLog}})
	targets := required("webhook", "slack", "smtp")
	channel.If = &jsonschema.Schema{Properties: names}
	channel.Then = &jsonschema.Schema{Required: []string{"resolved"}, Not: &jsonschema.Schema{AnyOf: targets}}
	channel.Else = &jsonschema.Schema{OneOf: targets}
}

// TestAlertsSchemaChecksChannelTargets: it takes what the loader takes, and nothing that leads
// nowhere or to two places.
func TestAlertsSchemaChecksChannelTargets(t *testing.T) {
	t.Parallel()
	verdict := fileVerdict(t, alertsFile)
	const files = "../internal/alerts/testdata/"
	good, err := filepath.Glob("../examples/*/alerts.yaml")
	if err != nil || len(good) < 2 {
		t.Fatalf("files %v, error %v; want those of the examples", good, err)
	}
	for _, file := range append(good, "../examples/alerts.yaml", files+"full.yaml") {
		if err := verdict(readText(t, file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	for _, bad := range []string{"no-target", "two-targets", "nats-target", "log-nothing", "no-name", "bad-name", "unknown-kind", "resolved-text"} {
		if verdict(readText(t, files+"bad/channel-"+bad+".yaml")) == nil {
			t.Errorf("the channel of %s is accepted", bad)
		}
	}
}

// TestAlertsSchemaNamesTheUnitsOfDurations, those that the loader takes and no others.
func TestAlertsSchemaNamesTheUnitsOfDurations(t *testing.T) {
	t.Parallel()
	verdict := fileVerdict(t, alertsFile)
	var schema struct {
		Defs map[string]struct {
			Properties map[string]struct{ Description string }
		} `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(readText(t, alertsFile)), &schema); err != nil {
		t.Fatal(err)
	}
	_, named, _ := strings.Cut(schema.Defs["FileThrottle"].Properties["window"].Description, "(units ")
	named, _, _ = strings.Cut(named, ")")
	var taken []string
	for _, window := range []string{"2000000000ns", "2000000us", "2000ms", "20s", "2m", "2h", "2d", "2w", "2y"} {
		file := "throttle: {limit: 5, window: " + window + "}\nrules: [{name: a}]\n"
		_, err := alerts.ParseRules(alertsFile, []byte(file), alerts.FileOptions{})
		if bySchema := verdict(file); (err == nil) != (bySchema == nil) {
			t.Errorf("%s: the loader says %v, and the schema %v", window, err, bySchema)
		}
		if err == nil {
			taken = append(taken, strings.TrimLeft(window, "0123456789"))
		}
	}
	if want := strings.Join(taken, ", "); named != want {
		t.Errorf("the schema names the units %q, and the loader takes %q", named, want)
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// textOrTexts returns the schemas of the types that may be one text or a list in YAML.
func textOrTexts(t reflect.Type) *jsonschema.Schema {
	text, one := &jsonschema.Schema{Type: "string"}, uint64(1)
	switch t {
	case reflect.TypeFor[alerts.Secrets]():
		text.Pattern = "^(env:|file:/)."
	case reflect.TypeFor[alerts.Texts]():
	default:
		return nil
	}
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{text, {Type: "array", Items: text, MinItems: &one}}}
}

// alertFields add constraints that the types do not express.
var alertFields = map[string]map[string]func(*jsonschema.Schema){
	"FileThrottle":  {"limit": oneToMost, "window": spanPattern},
	"FileThreshold": {"denials": oneToMost, "within": spanPattern},
	"FileChannel":   {"name": ruleName},
	"FileWebhook":   {"url": urlPattern},
	"FileSlack":     {"url": urlPattern},
	"FileSMTP":      {"password": pattern("^(env:|file:/)."), "tls": enum("starttls", "tls", "none"), "addr": pattern(":[0-9]+$")},
	"FileMatch":     {"type": eachText(enum("exceeded", "warning", "limits.exceeded", "limits.warning"))},
	"FileRule": {
		"name": ruleName, "severity": enum("info", "warning", "critical"), "dedup": spanPattern, "resolveAfter": spanPattern,
		"groupBy": func(f *jsonschema.Schema) { enum("user", "policy", "window", "key", "name")(f.Items) },
	},
	"FileQuiet": {
		"from": pattern("^([01][0-9]|2[0-3]):[0-5][0-9]$"), "to": pattern("^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"),
		"days": eachText(pattern("^(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?$")),
	},
}

var (
	spanPattern = pattern("^[1-9][0-9]*(ms|s|m|h|d|w)$")
	ruleName    = pattern("^[A-Za-z0-9._-]{1,64}$")
	urlPattern  = pattern("^(https?://|env:|file:/).")
)

func pattern(p string) func(*jsonschema.Schema) { return func(f *jsonschema.Schema) { f.Pattern = p } }

func enum(values ...any) func(*jsonschema.Schema) {
	return func(f *jsonschema.Schema) { f.Enum = values }
}

func oneToMost(f *jsonschema.Schema) { f.Minimum, f.Maximum = "1", "1000000000" }

// eachText refines the schema of a text, which the forms of one text and of a list share.
func eachText(refine func(*jsonschema.Schema)) func(*jsonschema.Schema) {
	return func(f *jsonschema.Schema) { refine(f.OneOf[0]) }
}
