// Package hack promises one thing.
package hack
