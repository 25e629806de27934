package ringquery
