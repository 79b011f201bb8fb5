package schemas_test

import (
	"encoding/json"
	"strconv"

	limits "github.com/seed503877ad/limits"

	"github.com/invopop/jsonschema"
)

// refineAlerts bounds the fields of requests about alerts.
func refineAlerts(s *jsonschema.Schema) {
	number := func(name string, min, max int) {
		if f, ok := s.Properties.Get(name); ok {
			f.Minimum, f.Maximum = json.Number(strconv.Itoa(min)), json.Number(strconv.Itoa(max))
		}
	}
	number("max", 1, limits.MaxAlertPage)
	number("for", 1, limits.MaxSilenceMillis)
	number("expiresAt", 1, 253402300799999)
	for name, most := range map[string]uint64{"user": limits.MaxKeyBytes, "rule": limits.MaxKeyBytes, "policy": limits.MaxKeyBytes,
		"reason": limits.MaxReasonBytes, "by": limits.MaxNameBytes, "note": limits.MaxNoteBytes} {
		if f, ok := s.Properties.Get(name); ok {
			f.MinLength = nil
			text(f, 0, most)
		}
	}
	if _, silence := s.Properties.Get("expiresAt"); silence {
		s.AnyOf = required("rule", "policy", "key", "user")
		s.OneOf = required("for", "expiresAt")
	}
}

// refineReplay says that one of the three is given. The id is that of a delivery, which is longer than others.
func refineReplay(s *jsonschema.Schema) {
	id, _ := s.Properties.Get("id")
	text(id, 1, 512)
	s.OneOf = required("id", "channel", "all")
}

// refineEvent lets an alert of a limit of nothing be.
func refineEvent(s *jsonschema.Schema) {
	limit, _ := s.Properties.Get("limit")
	limit.Minimum = "0"
}
