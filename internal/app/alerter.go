package app

import (
	"context"
	"log/slog"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/postgres"
)

// RunAlerter runs alerts and jobs beside limiters that are workers, until ctx is done. It answers admin.alerts and
// admin.jobs.
func RunAlerter(ctx context.Context, o Options, log *slog.Logger) error {
	o.Alerter = "on"
	if err := o.check(); err != nil {
		return err
	}
	l := &limiter{Options: o, name: "alerter", needs: []postgres.Rights{postgres.RightsToAlert()}, log: log}
	return l.run(ctx, l.lockData, l.loadAlerts, l.startWeb, l.startRestingStore, l.startNATS, l.startAlerts, l.watchAlerts,
		l.startJobs, l.startAlertService)
}

// startRestingStore is startStore of a process that decides nothing, nor may write to the journal.
func (l *limiter) startRestingStore(ctx context.Context) error {
	err := l.startStore(ctx)
	if shared, ok := l.store.(*postgres.Store); ok && err == nil {
		shared.Rest(ctx, true)
	}
	return err
}

func (l *limiter) startAlertService(context.Context) error {
	return l.serve(bus.ServiceConfig{
		Conn: l.requests, Version: l.Version, SchemaBase: l.schemaBase(), Logger: l.log,
		Advice: l.store.Advice, Jobs: l.jobs, Alerts: l.desk,
	})
}
