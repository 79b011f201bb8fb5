package app

import (
	"context"
	"log/slog"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/postgres"
)

// RunAlerter runs alerts and jobs until ctx is done, for limiters that share its PostgreSQL and its NATS cluster. It
// answers admin.alerts and admin.jobs. If options are invalid it fails with [ErrOptions].
func RunAlerter(ctx context.Context, o Options, log *slog.Logger) error {
	o.Alerter = "on"
	if err := o.check(); err != nil {
		return err
	}
	l := &limiter{Options: o, name: "alerter", rights: []postgres.Rights{postgres.RightsToAlert()}, log: log}
	return l.run(ctx, l.lockDataDir, l.loadAlerts, l.startWeb, l.startStandbyStore, l.startNATS, l.startAlerts, l.watchAlerts,
		l.startJobs, l.startAlertService)
}

// startStandbyStore starts the store for a process that makes no decisions and may not write to the journal.
func (l *limiter) startStandbyStore(ctx context.Context) error {
	err := l.startStore(ctx)
	if shared, ok := l.store.(*postgres.Store); ok && err == nil {
		shared.Rest(ctx, true)
	}
	return err
}

func (l *limiter) startAlertService(context.Context) error {
	return l.serve(bus.ServiceConfig{
		Conn: l.requests, Version: l.Version, SchemaBase: l.schemaBase(), Logger: l.log,
		Advice: l.store.Advice, Jobs: l.jobs, Alerts: l.alertAdmin,
	})
}
