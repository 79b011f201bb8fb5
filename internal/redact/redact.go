// Package redact removes from texts for people and logs what must not appear there: secrets, and characters that do not print
// on one line.
package redact

import (
	"errors"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// secret matches the user, password or token of a URL, also of one without a scheme.
var secret = regexp.MustCompile(`(^|[\s,"])([A-Za-z][\w+.-]*://)?[^\s,"]*@`)

// URLs replaces the user, password or token of every URL in a text, such as a log line, by ***.
func URLs(text string) string {
	return secret.ReplaceAllString(text, "$1$2***@")
}

// Servers is [URLs] for a comma-separated list of URLs. If one of them cannot be parsed, it is unknown where a password begins
// and ends, so nothing is shown.
func Servers(list string) string {
	if CheckServers(list) != nil {
		return "***"
	}
	return URLs(list)
}

// CheckServers checks that a comma-separated list of URLs can be parsed, as nats.go parses it, and that the URLs are of
// possible NATS servers. Its errors do not quote the list, because even the text in the place of a port may be a password.
func CheckServers(list string) error {
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue // nats.go skips it
		}
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(one)
		if err != nil {
			return errors.New(Error(err))
		}
		if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) { // nats.go would treat it as nats://
			return errors.New("unsupported scheme in a server URL; want nats://host:port, such as nats://127.0.0.1:4222, or one that begins with tls://, ws:// or wss://")
		}
		if u.Hostname() == "" { // nats.go would connect to this machine
			return errors.New("a server URL has no host; want nats://host:port, such as nats://127.0.0.1:4222")
		}
		if _, port, err := net.SplitHostPort(u.Host); err == nil {
			if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
				return errors.New("the port in a server URL is not a number from 1 to 65535; want nats://host:port, such as nats://127.0.0.1:4222")
			}
		} else if strings.Count(u.Host, ":") > 1 && !strings.HasSuffix(u.Host, "]") {
			return errors.New("a server URL has too many colons; want nats://host:port, or nats://[::1]:4222 for an IPv6 address")
		}
	}
	return nil
}

// Error is the text of an error, with [URLs] applied. It does not say why a URL cannot be parsed, because net/url quotes the
// part at fault, which may be a part of a password.
func Error(err error) string {
	if parse, ok := errors.AsType[*url.Error](err); ok && parse.Op == "parse" {
		return "the URL is malformed; want nats://user:password@host:port, with / ? # @ : % and , in the user or password written as" +
			" %2F %3F %23 %40 %3A %25 and %2C"
	}
	return URLs(err.Error())
}

// Line replaces unprintable characters by spaces, and shortens a text to maxBytes.
func Line(text string, maxBytes int) string {
	text = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > maxBytes {
		text = strings.ToValidUTF8(text[:maxBytes-len("…")], "") + "…"
	}
	return text
}
