package channel

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

const (
	// drainTimeout and maxAnswer bound reading the body of an answer, which mostly serves to reuse the connection.
	drainTimeout = 2 * time.Second
	maxAnswer    = 64 << 10
	// maxRetryAfter bounds the pause that a target may ask for. It may ask for more by mistake, and alerts of a day ago are
	// of no use.
	maxRetryAfter = time.Hour
	// After pingAfter of silence a connection of HTTP/2 is pinged, and closed unless it answers within pingTimeout. Together
	// they are less than the timeout of an attempt. A connection that died unnoticed would fail that attempt and all later
	// ones, because they share it.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second
	// maxConnections bounds the new connections that one attempt is sent on. After a stream of HTTP/2 that the server did
	// not process (GOAWAY, REFUSED_STREAM, and nginx's 444) net/http tries again on a new connection, at once and for as
	// long as the attempt may take: 300 times a second. What it opened and another attempt was quicker to use does not
	// count, nor what was over before it could be used, so there may be a few more.
	maxConnections = 3
)

// newTransport returns a transport without a proxy: a proxy from the environment would connect in our place, and bypass the
// guard. The context of each attempt bounds how long a target may take.
func newTransport(d *net.Dialer, c *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext:            d.DialContext,
		TLSClientConfig:        c.Clone(),
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxResponseHeaderBytes: 16 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    32, // as many as a webhook has requests in flight
		IdleConnTimeout:        90 * time.Second,
	}
}

// target is a URL to which messages are posted.
type target struct {
	maker *Maker
	url   *url.URL
}

// target parses a URL. Its errors do not contain it.
func (m *Maker) target(raw string) (*target, error) {
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" {
		return nil, errors.New("url: not an http or https URL with a host; want one such as https://example.com/hook")
	}
	return &target{m, u}, nil
}

// post posts a body, and returns the beginning of the answer's body. It uses the transport and no http.Client, because a
// client follows redirects and puts the URL into its errors.
func (t *target) post(ctx context.Context, header http.Header, body []byte) (answer []byte, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(boundConnections(ctx, cancel), http.MethodPost, t.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("cannot make a request from the url")
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", t.maker.cfg.UserAgent)
	resp, err := t.maker.transport.RoundTrip(req)
	if err != nil {
		return nil, t.sendError(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols { // its body is the connection, and no context ends a read of it
		return nil, t.statusError(resp)
	}
	defer time.AfterFunc(drainTimeout, func() { cancel(nil) }).Stop()
	answer, _ = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return answer, t.statusError(resp)
}

// boundConnections ends an attempt that was sent on too many connections.
func boundConnections(ctx context.Context, end context.CancelCauseFunc) context.Context {
	var opened atomic.Int64
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		if !c.Reused && opened.Add(1) > maxConnections {
			end(fmt.Errorf("it ended %d connections without an answer", maxConnections))
		}
	}})
}

// sendError makes the error of a request that got no answer.
func (t *target) sendError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else {
		err = withoutAnswer(err)
	}
	return fmt.Errorf("post to %s: %w", t.url.Host, err)
}

// withoutAnswer returns the part of an error that is safe to show: errors of the network and of TLS. net/http quotes an
// answer that it cannot parse, and the answer may contain the URL. Most errors of crypto/tls have no type; they begin with
// "tls: ".
func withoutAnswer(err error) error {
	if netErr, ok := errors.AsType[net.Error](err); ok {
		return netErr
	}
	for _, eof := range []error{io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, eof) {
			return eof
		}
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "tls: "):
		return err
	case strings.HasSuffix(text, "client connection lost"): // an error of net/http that has no type
		return errors.New("the connection was lost")
	}
	return errors.New("no valid HTTP answer")
}

// statusError returns the error of an answer's status; nil for 2xx. It shows nothing of the body, which may contain the URL.
func (t *target) statusError(resp *http.Response) error {
	code := resp.StatusCode
	if code >= 200 && code <= 299 {
		return nil
	}
	err := fmt.Errorf("post to %s: it answered %d %s", t.url.Host, code, http.StatusText(code))
	switch {
	case code >= 300 && code <= 399:
		return fmt.Errorf("%w: redirects are not followed; give the channel the url it leads to", err)
	case code == http.StatusGone:
		return &alerts.Refusal{Err: err, Gone: true}
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		if wait := t.maker.retryAfter(resp.Header.Get("Retry-After")); wait > 0 {
			return &alerts.Refusal{Err: err, RetryAfter: wait}
		}
	}
	return err
}

// retryAfter reads a Retry-After field (RFC 9110, 10.2.3): seconds, or a date. It returns 0 if it is neither, or in the
// past.
func (m *Maker) retryAfter(field string) time.Duration {
	field = strings.TrimSpace(field)
	var wait time.Duration
	if at, err := http.ParseTime(field); err == nil {
		wait = at.Sub(m.cfg.Now())
	} else if seconds, err := strconv.ParseUint(field, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		wait = time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	return min(max(wait, 0), maxRetryAfter)
}
