package app

import (
	"fmt"
	"net/netip"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/channel"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// AlertRules is an alerts file, for the verbs that work on one without a limiter.
type AlertRules = alerts.Rules

// AlertNotes tells of the rules that count wrongly, and of the channels that cannot work as long as no more than these private
// addresses are allowed.
func AlertNotes(rules *AlertRules, allow []netip.Prefix) (notes []string) {
	for rule, why := range rules.Doubts() {
		notes = append(notes, fmt.Sprintf("rule %q: %s", rule, why))
	}
	for i := range rules.Channels {
		if err := channel.Refused(&rules.Channels[i], allow); err != nil {
			notes = append(notes, fmt.Sprintf("channel %q cannot work: %v", rules.Channels[i].Name, err))
		}
	}
	return notes
}

// LoadAlerts reads an alerts file, and gives the SHA-256 of one that is right. Without secrets what env:NAME and file:/path
// hold is not looked for, so that a file can be checked where that is not.
func LoadAlerts(path string, secrets bool) (rules *AlertRules, hash string, err error) {
	data, err := yamlfile.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("read alerts: %w", err)
	}
	rules, err = alerts.ParseRules(path, data, alerts.FileOptions{NoSecrets: !secrets})
	return rules, yamlfile.Hash(data), err
}
