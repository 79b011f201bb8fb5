package main

import (
	"fmt"

	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/settings"
)

type alertsValidateCmd struct {
	File    string `arg:"" help:"The alerts file."`
	Secrets bool   `help:"Read env:NAME and file:/path too, as the service does."`
	// AlertsAllow is the setting of the service.
	AlertsAllow []string `name:"alerts-allow" env:"ALERTS_ALLOW" placeholder:"PREFIX" help:"Private addresses that the service allows: a note names channels that lead to others."`
}

func (*alertsValidateCmd) Help() string {
	return `Examples:

  limiter alerts validate alerts.yaml
  limiter alerts validate alerts.yaml --alerts-allow 10.0.0.0/8
  OPS_SECRET="whsec_…" limiter alerts validate alerts.yaml --secrets

Every mistake has a line: file:line: path: what; the fix. The exit status is 1 when there is one. No secret is needed, and
none is shown. Nothing is sent.`
}

func (c *alertsValidateCmd) Run(s *session) error {
	var options app.Options
	if err := (&settings.Alerts{AlertsAllow: c.AlertsAllow}).Set(&options); err != nil {
		return usageError(err.Error())
	}
	var hash string
	rules, err := await(s, c.File+" was not read to the end", func() (rules *app.AlertRules, err error) {
		rules, hash, err = app.LoadAlerts(c.File, c.Secrets)
		return rules, err
	})
	if err != nil {
		return printMistakes(s, err)
	}
	fmt.Fprintf(s.out, "%s: valid: %s, %s, hash %s\n", c.File, count(len(rules.Rules), "rule"),
		count(len(rules.Channels), "channel"), hash)
	for _, note := range app.AlertNotes(rules, options.AlertsAllow) {
		fmt.Fprintln(s.out, "note:", note)
	}
	return nil
}
