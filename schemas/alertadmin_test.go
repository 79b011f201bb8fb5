package schemas_test

import (
	"encoding/json"
	"strconv"

	"github.com/invopop/jsonschema"

	"github.com/seed503877ad/limits"
)

// refineAlerts bounds the fields of requests about alerts.
func refineAlerts(s *jsonschema.Schema) {
	number := func(name string, min, max int64) {
		if f, ok := s.Properties.Get(name); ok {
			f.Minimum, f.Maximum = json.Number(strconv.FormatInt(min, 10)), json.Number(strconv.FormatInt(max, 10))
		}
	}
	number("max", 1, limits.MaxAlertPage)
	number("for", 1, limits.MaxSilenceMillis)
	expires, silence := s.Properties.Get("expiresAt")
	for name, most := range map[string]uint64{"user": limits.MaxKeyBytes, "rule": limits.MaxKeyBytes, "policy": limits.MaxKeyBytes,
		"reason": limits.MaxReasonBytes, "by": limits.MaxNameBytes, "note": limits.MaxNoteBytes} {
		if f, ok := s.Properties.Get(name); ok {
			least := uint64(0) // an empty selector selects all alerts
			if silence && name != "by" {
				least = 1
			}
			text(f, least, most)
		}
	}
	if f, ok := s.Properties.Get("channel"); ok {
		text(f, 1, limits.MaxNameBytes)
	}
	if silence {
		expires.Minimum, expires.Maximum = "1", maxTime
		s.AnyOf = required("rule", "policy", "key", "user")
		s.OneOf = required("for", "expiresAt")
	}
}

// refineSilences allows a page with all silences in force.
func refineSilences(s *jsonschema.Schema) {
	refineAlerts(s)
	max, _ := s.Properties.Get("max")
	max.Maximum = json.Number(strconv.Itoa(limits.MaxSilences))
}

// maxDeliveryID bounds the id of a delivery, which is longer than other ids, and the name of a channel in requests for dead letters.
const maxDeliveryID = 512

func refineDead(s *jsonschema.Schema) {
	refineAlerts(s)
	for _, name := range []string{"channel", "after"} {
		f, _ := s.Properties.Get(name)
		text(f, 0, maxDeliveryID)
	}
}

// refineReplay requires exactly one of id, channel and all.
func refineReplay(s *jsonschema.Schema) {
	for _, name := range []string{"id", "channel"} {
		f, _ := s.Properties.Get(name)
		text(f, 1, maxDeliveryID)
	}
	s.OneOf = []*jsonschema.Schema{
		form("one delivery", []string{"id"}, map[string]*jsonschema.Schema{"channel": left, "all": no}),
		form("a channel", []string{"channel"}, map[string]*jsonschema.Schema{"id": left, "all": no}),
		form("all", []string{"all"}, map[string]*jsonschema.Schema{"id": left, "channel": left, "all": yes}),
	}
}

// refineEvent allows an alert about a limit of 0.
func refineEvent(s *jsonschema.Schema) {
	limit, _ := s.Properties.Get("limit")
	limit.Minimum = "0"
}
