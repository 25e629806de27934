// Some words that do not begin as go doc expects.
package rebalancer
