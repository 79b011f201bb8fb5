package httplimit

import (
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// maxHops bounds how far back the way of a request is followed.
const maxHops = 32

// ClientIP reads the client's address in canonical form: IPv4 also where it came as ::ffff:192.0.2.1, no zone.
//
// It is the address of the connection, unless that is in one of the trusted networks: then X-Forwarded-For is read
// from the right, past every address that is trusted, to the first that is not. What stands left of it may be
// forged and is not read. An entry that is no address ends the walk at the proxy that reported it. A Unix socket
// is trusted if anything is. A network of IPv4 may be given as ::ffff:10.0.0.0/104 as well.
//
// Trust only proxies that append to X-Forwarded-For or set it. For those that write Forwarded instead, see
// [ForwardedIP]; reading both would let a client forge the one that its proxy passes on untouched.
func ClientIP(trusted ...netip.Prefix) Attribute {
	return clientIP(trusted, func(h http.Header) []string { return list(h, "X-Forwarded-For", cutLast) })
}

// ForwardedIP is [ClientIP] with the header Forwarded of RFC 7239. An entry that breaks its grammar, or says more than one
// "for", is no address.
func ForwardedIP(trusted ...netip.Prefix) Attribute {
	return clientIP(trusted, func(h http.Header) []string {
		hops := list(h, "Forwarded", cutLastUnquoted)
		for i, hop := range hops {
			hops[i] = forwardedFor(hop)
		}
		return hops
	})
}

func clientIP(networks []netip.Prefix, hops func(http.Header) []string) Attribute {
	trusted := make([]netip.Prefix, len(networks))
	for i, network := range networks {
		trusted[i] = unmapped(network)
	}
	return func(r *http.Request) string {
		client, ok := parseHop(r.RemoteAddr)
		socket := len(trusted) > 0 && (r.RemoteAddr == "" || r.RemoteAddr[0] == '@' || r.RemoteAddr[0] == '/')
		if !socket && !isTrusted(client, trusted) {
			return addressText(client, ok)
		}
		way := hops(r.Header)
		for i := len(way) - 1; i >= 0; i-- {
			hop, isAddress := parseHop(way[i])
			if !isAddress {
				break
			}
			client, ok = hop, true
			if !isTrusted(hop, trusted) {
				break
			}
		}
		return addressText(client, ok)
	}
}

func addressText(ip netip.Addr, ok bool) string {
	if !ok {
		return ""
	}
	return ip.String()
}

// unmapped gives ::ffff:10.0.0.0/104 as 10.0.0.0/8, since it is compared with addresses that are unmapped, too. One that is wider
// than the mapped addresses stays a network of IPv6.
func unmapped(network netip.Prefix) netip.Prefix {
	if ip := network.Addr(); ip.Is4In6() && network.Bits() >= 96 {
		return netip.PrefixFrom(ip.Unmap(), network.Bits()-96)
	}
	return network
}

func isTrusted(ip netip.Addr, trusted []netip.Prefix) bool {
	return slices.ContainsFunc(trusted, func(network netip.Prefix) bool { return network.Contains(ip) })
}

// list gives the last entries of a header that is a list and may come in several lines.
func list(h http.Header, name string, cut func(line string, separator byte) (before, last string, found bool)) []string {
	var entries []string
	lines := h.Values(name)
	for i := len(lines) - 1; i >= 0 && len(entries) < maxHops; i-- {
		for line, more := lines[i], true; more && len(entries) < maxHops; {
			var entry string
			line, entry, more = cut(line, ',')
			entries = append(entries, strings.TrimSpace(entry))
		}
	}
	slices.Reverse(entries)
	return entries
}

func cutLast(text string, separator byte) (before, last string, found bool) {
	if i := strings.LastIndexByte(text, separator); i >= 0 {
		return text[:i], text[i+1:], true
	}
	return "", text, false
}

// cutLastUnquoted is cutLast that leaves quoted strings whole. It reads from the right, where trusted proxies have written, and
// so comes to their entries before it comes to a quote that somebody left open.
func cutLastUnquoted(text string, separator byte) (before, last string, found bool) {
	quoted := false
	for i := len(text) - 1; i >= 0; i-- {
		switch c := text[i]; {
		case c == '"' && !(quoted && escaped(text[:i])):
			quoted = !quoted
		case c == separator && !quoted:
			return text[:i], text[i+1:], true
		}
	}
	return "", text, false
}

// escaped tells whether a backslash of what stands before a character belongs to it, and not to another backslash.
func escaped(before string) bool {
	return (len(before)-len(strings.TrimRight(before, `\`)))%2 == 1
}

// forwardedFor gives the node of the parameter "for", as in for="[2001:db8::1]:4711";proto=https, if there is one alone.
func forwardedFor(element string) (node string) {
	for more, found := true, false; more; {
		var parameter string
		element, parameter, more = cutLastUnquoted(element, ';')
		name, value, _ := strings.Cut(parameter, "=")
		value, ok := unquoted(strings.TrimSpace(value))
		switch isFor := strings.EqualFold(strings.TrimSpace(name), "for"); {
		case !ok || isFor && found:
			return ""
		case isFor:
			node, found = value, true
		}
	}
	return node
}

// unquoted reads a token or a quoted string. Tokens are not looked at closely, since many write for=192.0.2.1:4711.
func unquoted(value string) (text string, ok bool) {
	if !strings.Contains(value, `"`) {
		return value, true
	}
	if value[0] != '"' {
		return "", false
	}
	var b strings.Builder
	for i := 1; i < len(value); i++ {
		switch value[i] {
		case '"':
			return b.String(), i == len(value)-1
		case '\\':
			if i++; i == len(value) {
				return "", false
			}
		}
		b.WriteByte(value[i])
	}
	return "", false
}

// hiddenPort is one that a proxy gives a name instead of its number (RFC 7239, 6.3).
var hiddenPort = regexp.MustCompile(`:_[A-Za-z0-9._-]+$`)

// parseHop reads an address with or without a port and brackets.
func parseHop(text string) (netip.Addr, bool) {
	text = hiddenPort.ReplaceAllString(text, "")
	if hop, err := netip.ParseAddrPort(text); err == nil {
		return hop.Addr().Unmap().WithZone(""), true
	}
	hop, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return hop.Unmap().WithZone(""), err == nil
}
