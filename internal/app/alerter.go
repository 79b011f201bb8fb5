package app

import (
	"context"
	"log/slog"
)

// RunAlerter runs alerts and jobs beside limiters that are workers, until ctx is done.
func RunAlerter(ctx context.Context, o Options, log *slog.Logger) error {
	l := &limiter{Options: o, log: log}
	return l.run(ctx, l.startStore, l.startNATS, l.startWeb, l.startJobs)
}
