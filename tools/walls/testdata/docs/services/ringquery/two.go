// Package ringquery has its comment in another file.
package ringquery
