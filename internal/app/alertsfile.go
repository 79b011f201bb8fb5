package app

import (
	"fmt"
	"net/netip"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/channel"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// AlertRules are the rules and channels of an alerts file, for the verbs that work on one without a limiter.
type AlertRules = alerts.Rules

// AlertNotes returns warnings about rules that count wrongly, and about channels that cannot work if only the private
// addresses in allow are allowed.
func AlertNotes(rules *AlertRules, allow []netip.Prefix) (notes []string) {
	for rule, why := range rules.Miscounting() {
		notes = append(notes, fmt.Sprintf("rule %q: %s", rule, why))
	}
	for i := range rules.Channels {
		if err := channel.CheckTarget(&rules.Channels[i], allow); err != nil {
			notes = append(notes, fmt.Sprintf("channel %q cannot work: %v", rules.Channels[i].Name, err))
		}
	}
	return notes
}

// LoadAlerts reads an alerts file, and returns the SHA-256 of its text. Unless secrets is set, env:NAME and file:/path are
// not read, so that a file can be checked on a machine without them.
func LoadAlerts(path string, secrets bool) (rules *AlertRules, hash string, err error) {
	data, err := yamlfile.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("read alerts: %w", err)
	}
	rules, err = alerts.ParseRules(path, data, alerts.FileOptions{NoSecrets: !secrets})
	return rules, yamlfile.Hash(data), err
}
