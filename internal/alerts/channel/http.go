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
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

const (
	// drainTimeout and maxAnswer bound what is read behind the header, which only serves to use the connection again.
	drainTimeout = 2 * time.Second
	maxAnswer    = 64 << 10
	// maxRetryAfter bounds what a target may ask for: alerts of a day ago are of no use, and it may have asked by mistake.
	maxRetryAfter = time.Hour
	// pingAfter of silence a connection of HTTP/2 is asked whether it lives, and pingFor is how long it may take to say so. Together
	// they are less than a try: one that has died without a word fails the tries on it, and would be used for all others, too.
	pingAfter = 5 * time.Second
	pingFor   = 5 * time.Second
)

// newTransport has no proxy: one of the environment would make the connection in our place, past the guard. How long a target
// may take is for the context of each try.
func newTransport(d *net.Dialer, c *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext:            d.DialContext,
		TLSClientConfig:        c.Clone(),
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxResponseHeaderBytes: 16 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingFor},
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    32, // as many as a webhook has requests under way
		IdleConnTimeout:        90 * time.Second,
	}
}

// target is where to post to.
type target struct {
	maker *Maker
	url   *url.URL
}

// target checks a URL. Its errors do not tell it.
func (m *Maker) target(raw string) (*target, error) {
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" {
		return nil, errors.New("url: it is not one of http or https with a host, such as https://example.com/hook")
	}
	return &target{m, u}, nil
}

// post sends a body and gives the beginning of the answer's. It uses the transport and no http.Client, because that one
// reads redirects, and puts the URL into its errors.
func (t *target) post(ctx context.Context, header http.Header, body []byte) (answer []byte, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("make a request of the url")
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", t.maker.cfg.UserAgent)
	if user := t.url.User; user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	resp, err := t.maker.transport.RoundTrip(req)
	if err != nil {
		return nil, t.failed(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols { // its body is the connection, which no context ends
		return nil, t.judge(resp)
	}
	defer time.AfterFunc(drainTimeout, cancel).Stop()
	answer, _ = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return answer, t.judge(resp)
}

func (t *target) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else {
		err = tellable(err)
	}
	return fmt.Errorf("post to %s: %w", t.url.Host, err)
}

// tellable tells what went wrong on the way, and nothing more of the rest: net/http quotes an answer that it cannot read, and
// that may repeat the URL. What crypto/tls says of a connection is of no type for the most part; its errors begin with its name.
func tellable(err error) error {
	if way, ok := errors.AsType[net.Error](err); ok {
		return way
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, end) {
			return end
		}
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "tls: "):
		return err
	case strings.HasSuffix(text, "client connection lost"): // as package http has it, without a type
		return errors.New("the connection was lost")
	}
	return errors.New("it gave no proper HTTP answer")
}

// judge makes an error of an answer's status. It tells nothing of the body, in which a target may repeat the URL.
func (t *target) judge(resp *http.Response) error {
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

// retryAfter reads a Retry-After field (RFC 9110, 10.2.3): seconds, or a date. It gives 0 for what is neither, or past.
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
