//! The dashboard in a real browser, during real takeovers.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use pgpalisade_test_servers::browser::Browser;
use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::Signal;
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Wire, trusted};

/// A possible application_name of a client.
const MARKUP: &str = "<img src=x onerror=\"document.title='broken'\">";

struct Scene {
    stage: Stage,
    http: Http,
}

impl Scene {
    /// A leader that has deposed one with an open transaction, and one that comes too late.
    fn new() -> Self {
        let postgres = Postgres::start();
        postgres.sql("CREATE TABLE jobs (id int)");
        let http = Http::free();
        let proxy = Proxy::start_with(
            http.options(&postgres)
                .flag("--takeover-timeout", "1s")
                .flag("--shutdown-grace", "20s"),
        );
        Self {
            stage: Stage { proxy, postgres },
            http,
        }
    }

    fn leader(&self, token: &str, name: &str) -> Wire {
        let mut wire = Wire::connect(&self.stage.proxy.endpoint());
        let session = trusted(&[("application_name", name), ("fencing.token", token)]);
        wire.startup(pgpalisade_test_servers::wire::PROTOCOL_3_0, &session);
        wire.until_ready();
        wire
    }

    fn address(&self) -> String {
        format!("http://127.0.0.1:{}/", self.http.port())
    }
}

fn text(selector: &str, part: &str) -> String {
    format!("document.querySelector({selector:?})?.innerText.includes({part:?})")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_shows_what_there_is_and_what_to_do() {
    let scene = Scene::new();
    let mut first = scene.leader("33", "first");
    first.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let _second = scene.leader("34", MARKUP);
    let browser = Browser::open(1280, 900).await;
    browser.page.goto(&scene.address()).await.unwrap();
    browser.until(&text("#standing", "serving")).await;
    browser.until(&text("[data-table=scopes]", "34")).await;
    browser
        .until("document.querySelectorAll('[data-table=takeovers] tbody tr').length === 2")
        .await;
    browser
        .until(&text("[data-table=takeovers]", "complete"))
        .await;
    browser
        .until("document.querySelectorAll('#line circle.complete').length === 2")
        .await;
    browser
        .until(&text("[data-table=sessions]", "onerror"))
        .await;
    assert_eq!(
        browser
            .value("document.getElementById('banner').children.length")
            .await,
        0
    );
    for _ in 0..3 {
        scene.leader("33", "zombie");
    }
    browser
        .until(&text(
            "#banner",
            "deposed leader was refused in the last minute: zombie",
        ))
        .await;
    browser
        .until("document.querySelectorAll('[data-table=rejections] td.bad').length === 4")
        .await;
    // One process, three connections, and the session ended by the takeover.
    let named = "document.getElementById('banner').innerText.split('zombie').length - 1";
    assert_eq!(browser.value(named).await, 1);
    let seen = "[...document.querySelectorAll('[data-table=rejections] th')].find((e) => e.innerText === 'statement')\
                .getBoundingClientRect().right <= innerWidth";
    assert_eq!(browser.value(seen).await, true);
    // Filters.
    let filter = "(() => { const field = document.querySelector('[data-filter=rejections]'); \
                  field.value = 'zombie no'; field.dispatchEvent(new Event('input')); return true; })()";
    browser.value(filter).await;
    browser
        .until(&text("[data-table=rejections]", "none"))
        .await;
    // Clients' names are shown as text, and the page contacts no other host.
    assert_eq!(
        browser
            .value("document.querySelectorAll('main img, main script').length")
            .await,
        0
    );
    assert_eq!(browser.value("document.title").await, "pgpalisade");
    let strangers = "performance.getEntriesByType('resource').filter((r) => !r.name.startsWith(location.origin + '/') \
                     && !r.name.startsWith('data:')).length";
    assert_eq!(browser.value(strangers).await, 0);
    // A takeover that cannot be completed.
    let second = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%onerror%'";
    let backend = scene.stage.value(second).parse().unwrap();
    pgpalisade_test_servers::machine::signal(backend, Signal::STOP);
    let mut third = Wire::connect(&scene.stage.proxy.endpoint());
    third.start_as_leader("35");
    browser
        .until(&text("#banner .bad", &format!("server process {backend}")))
        .await;
    browser
        .until("document.querySelectorAll('#line circle.incomplete').length === 1")
        .await;
    keep(&browser, "dashboard.png").await;
    pgpalisade_test_servers::machine::signal(backend, Signal::CONT);
}

/// Saves a screenshot if `PGPALISADE_PICTURES` names a directory.
async fn keep(browser: &Browser, name: &str) {
    if let Some(dir) = std::env::var_os("PGPALISADE_PICTURES") {
        browser
            .picture(&std::path::Path::new(&dir).join(name))
            .await;
    }
}

/// The page asks for the token, and shows nothing before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_asks_for_the_token() {
    let postgres = Postgres::start();
    let dir = scratch_dir();
    let file = dir.path().join("token");
    std::fs::write(&file, "a-token-of-the-operator\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let http = Http::free();
    let file = file.display().to_string();
    let _proxy = Proxy::start_with(http.options(&postgres).flag("--http-token-file", &file));
    let browser = Browser::open(1280, 900).await;
    let address = format!("http://127.0.0.1:{}/", http.port());
    browser.page.goto(&address).await.unwrap();
    let answer = |token: &'static str| {
        let enter = format!(
            "(() => {{ document.getElementById('token').value = '{token}'; \
             document.querySelector('#login button').click(); return true; }})()"
        );
        let browser = &browser;
        async move {
            browser.until(&text("#standing", "a token is needed")).await;
            browser.value(&enter).await;
        }
    };
    answer("a-token-of-the-operatos").await;
    assert_eq!(
        browser
            .value("document.querySelectorAll('td').length")
            .await,
        0
    );
    answer("a-token-of-the-operator").await;
    browser.until(&text("#standing", "serving")).await;
    browser
        .until(&text("[data-table=proxies]", "pgpalisade control"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_fits_a_phone_and_says_when_something_is_gone() {
    let mut scene = Scene::new();
    scene.leader("33", "first");
    let browser = Browser::open(390, 800).await;
    browser.page.goto(&scene.address()).await.unwrap();
    browser.until(&text("#standing", "serving")).await;
    let wide = "document.documentElement.scrollWidth <= innerWidth";
    assert_eq!(browser.value(wide).await, true);
    keep(&browser, "dashboard-phone.png").await;
    let mut open = scene.leader("34", "open");
    open.ok("BEGIN");
    pgpalisade_test_servers::machine::signal(scene.stage.proxy.pid(), Signal::TERM);
    browser
        .until(&text("#banner .bad", "No new client gets in"))
        .await;
    open.ok("COMMIT");
    scene.stage.proxy.terminate();
    scene.stage.proxy.restart();
    browser.until(&text("#standing", "serving")).await;
    // Every control and table is reachable by keyboard and has a name.
    let nameless = "[...document.querySelectorAll('input:not([type=password]), select, [tabindex]')].filter((e) => \
                    !e.closest('label') && !e.getAttribute('aria-labelledby')).length";
    assert_eq!(browser.value(nameless).await, 0);
    scene.stage.postgres.crash();
    browser.until(&text("#standing", "not ready")).await;
    browser
        .until(&text("#banner .bad", "pgpalisade check"))
        .await;
    scene.stage.proxy.kill();
    browser.until(&text("#standing", "no answer")).await;
    browser
        .until(&text("#banner .bad", "What you see is old"))
        .await;
}
