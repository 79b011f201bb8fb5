package main

import (
	"errors"

	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/settings"
)

// serveCmd runs a limiter until a signal.
type serveCmd struct {
	settings.NATS    `set:"unset=an embedded server unless set"`
	NATSListen       string  `name:"nats-listen" env:"NATS_LISTEN" default:"127.0.0.1:4222" placeholder:"ADDR" help:"Where the embedded NATS server listens, without --nats-url; port 0 picks a free one (${default})."`
	DatabaseURL      string  `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"PostgreSQL; without it a SQLite file in the data folder."`
	DataDir          string  `name:"data-dir" env:"DATA_DIR" default:"./data" placeholder:"DIR" help:"Folder of the SQLite file and the embedded server's streams (${default})."`
	HTTP             string  `name:"http" env:"HTTP_ADDR" default:"127.0.0.1:8080" placeholder:"ADDR" help:"Where the dashboard, health, metrics and schemas are served; off for none, port 0 picks a free one (${default})."`
	WarningThreshold float64 `name:"warning-threshold" env:"WARNING_THRESHOLD" default:"0.1" placeholder:"PART" help:"Part of a limit, 0 to 1; a warning is raised when no more than it remains (${default})."`
	OnError          string  `name:"on-error" env:"ON_ERROR" enum:"allow,deny,local" default:"allow" help:"What to answer when the store fails: ${enum} (${default})."`
	Policies         string  `name:"policies" env:"POLICIES" type:"path" placeholder:"FILE" help:"Policy file (YAML); read again when it changes and on SIGHUP."`
	HashKey          string  `name:"hash-key" env:"HASH_KEY" placeholder:"KEY" help:"Key of the filter hash in policies, 16 bytes or more; the same on all workers. Without it one is kept in the data folder, for SQLite only. Better set as HASH_KEY: others can see the arguments of a process."`
	Source           string  `name:"source" env:"SOURCE" default:"urn:limits" placeholder:"URI" help:"Source of the CloudEvents: a URI that names this service (${default})."`
	KeyPrefix        string  `name:"key-prefix" env:"KEY_PREFIX" default:"lim" placeholder:"WORD" help:"Beginning of new API keys (${default})."`
	UsageKeys        int     `name:"usage-keys" env:"USAGE_KEYS" default:"100000" placeholder:"N" help:"How many keys an hour are counted by themselves in the usage, the busiest; the rest are counted together, as other keys (${default})."`
	Alerter          string  `name:"alerter" env:"ALERTER" enum:"auto,on,off" default:"auto" help:"Whether alerts and jobs run in this process. auto: yes, unless both --nats-url and --database-url are set; then the program alerter runs them. With SQLite, jobs always run (${default})."`
	settings.Alerts
	settings.Jobs
	settings.Log
}

func (*serveCmd) Help() string {
	return `Examples:

  limiter
      all in one on this machine: NATS on 127.0.0.1:4222, HTTP on 127.0.0.1:8080, SQLite in ./data

  limiter --nats-url nats://nats:4222 --database-url postgres://limits@db/limits
      a worker, one of any number

  limiter --policies limits.yaml
      with policies; see limiter policies validate --help

  limiter --nats-listen 127.0.0.1:0 --http off --data-dir "$(mktemp -d)"
      a throwaway limiter`
}

func (c *serveCmd) Validate() error {
	return errors.Join(settings.CheckAddress("--http", c.HTTP, "127.0.0.1:8080", "off"), settings.CheckAddress("--nats-listen", c.NATSListen, "127.0.0.1:4222"), c.NATS.Validate(), c.Jobs.Validate())
}

func (c *serveCmd) options() (app.Options, error) {
	o := app.Options{
		NATSListen: c.NATSListen, DatabaseURL: c.DatabaseURL, DataDir: c.DataDir, HTTPAddr: c.HTTP, Source: c.Source,
		WarningThreshold: c.WarningThreshold, OnError: c.OnError, KeyPrefix: c.KeyPrefix, UsageKeys: c.UsageKeys,
		Policies: c.Policies, HashKey: c.HashKey, Alerter: c.Alerter, Version: programVersion(),
	}
	c.NATS.Set(&o)
	c.Jobs.Set(&o)
	err := c.Alerts.Set(&o)
	return o, err
}

// Run serves until the context ends and everything is drained.
func (c *serveCmd) Run(s *session) error {
	o, err := c.options()
	if err != nil {
		return usageError(err.Error())
	}
	settings.CollectLess()
	settings.FitContainer()
	if o.NATSURL != "" {
		o.Busy = settings.SpareProcessors()
	}
	return app.Run(s.ctx, o, c.Logger(s.err))
}
