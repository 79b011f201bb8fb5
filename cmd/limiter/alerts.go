package main

// alertsCmd works with alerts.
type alertsCmd struct {
	Validate alertsValidateCmd `cmd:"" help:"Tell every mistake of an alerts file."`
}
