package app

import (
	"fmt"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// AlertRules is an alerts file, for the verbs that work on one without a limiter.
type AlertRules = alerts.Rules

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
