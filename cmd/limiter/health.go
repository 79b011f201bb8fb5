package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/settings"
)

// healthcheckCmd asks a limiter on the same machine whether it is ready.
type healthcheckCmd struct {
	HTTP    string        `name:"http" env:"HTTP_ADDR" default:"127.0.0.1:8080" placeholder:"ADDR" help:"The limiter's --http address (${default})."`
	Timeout time.Duration `default:"3s" placeholder:"DURATION" help:"How long to wait for an answer (${default})."`
}

func (*healthcheckCmd) Help() string {
	return `Examples:

  limiter healthcheck
  limiter healthcheck --http 127.0.0.1:9090

The exit status is 0 when the limiter is ready and 1 when it is not.`
}

func (c *healthcheckCmd) Validate() error {
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout: %v is not above 0; want one such as 3s", c.Timeout)
	}
	return settings.CheckAddress("--http", c.HTTP, "127.0.0.1:8080", "off")
}

func (c *healthcheckCmd) Run(s *session) error {
	address, err := dialable(c.HTTP)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, c.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	// http.DefaultClient would use a proxy from the environment, and follow redirects of another service.
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return fmt.Errorf("healthcheck: %w; is a limiter running there? pass its --http (HTTP_ADDR) address as --http", err)
	}
	defer answer.Body.Close()
	reason, _ := io.ReadAll(io.LimitReader(answer.Body, 4096)) // if it fails, the status is enough
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("healthcheck: not ready: %s: %s", answer.Status, strings.TrimSpace(string(reason)))
	}
	fmt.Fprintln(s.out, "ready")
	return nil
}

// dialable turns a listen address into one to connect to: an unspecified host, as in ":8080", becomes 127.0.0.1.
func dialable(listen string) (string, error) {
	if listen == "off" {
		return "", errors.New("healthcheck: --http is off, so there is nothing to check")
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("healthcheck: --http: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}
