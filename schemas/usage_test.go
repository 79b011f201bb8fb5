package schemas_test

import (
	"strings"

	"github.com/invopop/jsonschema"

	"github.com/seed503877ad/limits"
)

// refineLogEntry bounds a line of the request log. A body is one line, or an array of lines, so the constraints on fields apply only
// to objects.
func refineLogEntry(s *jsonschema.Schema) {
	one := uint64(1)
	s.Type, s.OneOf = "", []*jsonschema.Schema{{Type: "object"},
		{Type: "array", MinItems: &one, Items: &jsonschema.Schema{Type: "object", Ref: "#"}}}
	get := func(name string) *jsonschema.Schema { f, _ := s.Properties.Get(name); return f }
	text(get("user"), 0, limits.MaxKeyBytes)
	text(get("endpoint"), 1, limits.MaxKeyBytes)
	text(get("method"), 1, limits.MaxMethodBytes)
	get("status").Minimum, get("status").Maximum = "100", "599"
	get("millis").Minimum, get("millis").Maximum = "0", "86400000"
	get("at").Minimum = "0"
	get("at").Description = strings.TrimSuffix(get("at").Description, ".") + ", and at most 60 s in the future."
}

// refineUsage bounds the requests about usage.
func refineUsage(s *jsonschema.Schema) {
	refineList(s)
	enum := func(name string, words ...any) {
		if f, ok := s.Properties.Get(name); ok {
			f.Enum = words
		}
	}
	enum("by", limits.ByDenied, limits.ByUsed, limits.ByAllowed)
	enum("report", limits.ReportTraffic, limits.ReportSlowest, limits.ReportErrors)
	if f, ok := s.Properties.Get("policy"); ok {
		text(f, 0, limits.MaxNameBytes)
	}
	if f, ok := s.Properties.Get("user"); ok {
		text(f, 0, limits.MaxKeyBytes)
	}
	period, _ := s.Properties.Get("period")
	period.Pattern = "^[1-9][0-9]*(ms|s|m|h|d|w)$"
	for _, name := range []string{"since", "until"} {
		f, _ := s.Properties.Get(name)
		f.Minimum, f.Maximum = "1", maxTime
	}
	s.DependentRequired = map[string][]string{"until": {"since"}}
	s.DependentSchemas = map[string]*jsonschema.Schema{
		"period": form("", nil, map[string]*jsonschema.Schema{"since": left, "until": left})}
}
